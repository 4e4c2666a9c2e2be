"""Which connections may stay."""

from __future__ import annotations

from pipeline.connections import LIMIT, RATE, REVOKED, SLACK_BYTES, UNFINISHED, Connections, Cut, Heard

NONE: frozenset[int] = frozenset()
GOOD, BAD = b"good", b"bad"


def made(*descriptors: int) -> Connections:
    connections = Connections(most=4, message_bytes=1000)
    for descriptor in descriptors:
        assert connections.accepted(descriptor) == []
    return connections


def test_a_connection_above_the_limit_is_cut_off_until_one_closes() -> None:
    connections = made(1, 2, 3, 4)
    assert connections.accepted(5) == [Cut(5, LIMIT)]
    connections.closed(5)
    connections.closed(1)
    assert connections.accepted(6) == []
    assert connections.descriptors() == [2, 3, 4, 6]


def test_a_user_who_is_not_listed_any_more_is_cut_off_when_heard() -> None:
    connections = made(1, 2)
    said = Heard({1: GOOD, 2: BAD, 9: BAD}, NONE, drained=False)
    assert connections.heard(said, {}, {GOOD}, 1.0) == [Cut(2, REVOKED)]
    assert connections.heard(said, {}, None, 1.0) == []


def test_after_a_revocation_only_those_stay_who_were_heard_since_with_a_good_key() -> None:
    connections = made(1, 2, 3, 4)
    connections.heard(Heard({1: GOOD, 2: GOOD, 3: BAD}, NONE, drained=False), {}, {GOOD, BAD}, 1.0)
    connections.heard(Heard({1: GOOD}, NONE, drained=False), {}, {GOOD}, 2.5)
    assert connections.unvouched({GOOD}, since=2.0) == [Cut(2, REVOKED), Cut(3, REVOKED), Cut(4, REVOKED)]


def test_a_number_that_is_used_again_is_another_connection() -> None:
    connections = made(1)
    connections.heard(Heard({1: GOOD}, NONE, drained=True), {1: 10**6}, {GOOD}, 1.0)
    connections.closed(1)
    connections.accepted(1)
    assert connections.unvouched({GOOD}, since=0.5) == [Cut(1, REVOKED)]


def test_who_sends_too_fast_is_cut_off_if_still_there() -> None:
    assert made(1).heard(Heard({1: b""}, {1, 7}, drained=True), {}, None, 0.0) == [Cut(1, RATE)]


def test_bytes_without_the_end_of_a_message_are_bounded() -> None:
    connections, bound = made(1, 2), 2 * 1000 + SLACK_BYTES
    silence = Heard({}, NONE, drained=True)
    assert connections.heard(silence, {1: bound, 2: bound}, None, 0.0) == []
    assert connections.heard(Heard({1: b""}, NONE, drained=True), {1: bound + 1, 2: bound + 1}, None, 1.0) == [
        Cut(2, UNFINISHED)
    ]
    assert connections.heard(silence, {1: 2 * bound + 1}, None, 2.0) == [], "counted from its last whole message"
    assert connections.heard(silence, {1: 2 * bound + 2}, None, 3.0) == [Cut(1, UNFINISHED)]


def test_while_whole_messages_wait_unseen_nobody_is_blamed() -> None:
    busy = Heard({}, NONE, drained=False)
    assert made(1).heard(busy, {1: 10 * SLACK_BYTES}, None, 0.0) == []
