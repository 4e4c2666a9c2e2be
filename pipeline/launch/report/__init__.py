"""``seedmq report``: one HTML page about a run, with all that it needs in itself."""
