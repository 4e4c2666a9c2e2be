"""Hostile input: mutations of what is valid, the functions that stand them, and inputs that once told something.

mutations.py         what is valid, spoilt in three ways
targets.py           bytes -> one of the readers: whatever is not refused by name is a failure
corpus/<target>/     inputs that are replayed by ``tests/unit/test_fuzz.py``, and where the fuzzer begins
coverage_guided.py   ``make fuzz``: atheris looks for inputs that reach new branches
"""
