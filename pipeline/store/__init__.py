"""The unroll store: what every backend does (``interface``), in Redis (``redis_store``)."""
