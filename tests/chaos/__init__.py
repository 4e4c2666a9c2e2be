"""Faults in a whole pipeline of real processes, at random and at staged moments: ``make chaos``.

Not collected by pytest, except for a short form in ``tests/system/test_chaos.py``. ``python -m tests.chaos --help``.
"""
