"""Daemons: manager, service, start and stop. Usable by a service that has no orders."""
