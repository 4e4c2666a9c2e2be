"""The section `store`: where unrolls are kept, and for whom."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from pipeline.config.section import Seconds, Section


class StoreSection(Section):
    backend: Literal["redis", "memory"] = "redis"
    """Where unrolls wait; `memory`: in the learner's process, for a single machine, gone when it ends."""
    url: str | None = None
    """`redis://`, `rediss://` or `unix://`; none starts an embedded server on a private socket (`seedmq run`)."""
    username: str | None = None
    """Redis user."""
    password_file: str | None = None
    """File that holds the Redis password; never printed."""
    prefix: str = Field("seedmq", pattern=r"^[A-Za-z0-9_.:-]+$")
    """Every key starts with this; two runs in one Redis take two."""
    capacity: int = Field(128, gt=0)
    """Unrolls in the FIFO."""
    when_full: Literal["block", "drop_oldest"] = "block"
    """Back-pressure, or drop the oldest unrolls and count them."""
    compression: Literal["auto", "none", "lz4", "zstd"] = "auto"
    """Lossless compression of unrolls; `auto`: lz4 where they hold uint8 frames."""
    ack: Literal["update", "checkpoint"] = "update"
    """Unrolls are deleted after the update that used them, or kept until the checkpoint that covers it."""
    operation_timeout_seconds: Seconds = Field(5.0, gt=0)
    """Socket timeout of one Redis command."""
    unreachable_seconds: Seconds = Field(60.0, gt=0)
    """Redis out of reach for so long at start exits 4."""
    lease_seconds: Seconds = Field(15.0, ge=3)
    """A learner not heard of for so long loses the store's prefix to another run that asks for it."""

    @field_validator("url")
    @classmethod
    def _url_known_and_without_password(cls, url: str | None) -> str | None:
        parts = urlsplit(url or "")
        if url is not None and parts.scheme not in ("redis", "rediss", "unix"):
            raise ValueError("not a redis://, rediss:// or unix:// URL")
        if parts.password is not None or "password=" in parts.query:
            raise ValueError("holds a password, which would be printed: put it into store.password_file")
        return url

    @model_validator(mode="after")
    def _memory_has_no_url(self) -> StoreSection:
        if self.backend == "memory" and self.url is not None:
            raise ValueError("backend = memory needs no url: it is the learner's own memory")
        return self
