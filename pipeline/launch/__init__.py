"""What stands on the roles: a whole run on one machine, its progress, status and evaluation."""
