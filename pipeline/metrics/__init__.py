"""What each process counts, for Prometheus, and whether it is alive and ready: see ``docs/metrics.md``.

Served where ``metrics.bind`` is set (``SEEDMQ_METRICS__BIND=127.0.0.1:9464``). Plain HTTP without a password: bind it
to the loopback or a private network only.
"""
