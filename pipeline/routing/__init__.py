"""The broker's decisions as state machines: messages and a clock reading in, a list of actions out. No IO, no clock."""
