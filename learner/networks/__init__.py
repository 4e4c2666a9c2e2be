"""The networks that seedmq ships; any class with the same three methods can stand beside them."""
