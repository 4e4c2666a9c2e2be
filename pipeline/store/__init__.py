"""The stores of unrolls: what every backend does (``interface``), in Redis (``redis_*``), in memory (``memory``)."""
