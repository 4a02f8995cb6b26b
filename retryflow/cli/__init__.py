"""The operator's command ``retryflow``: what waits, what runs, what happens next, and how to steer it.

Each command is one class in a module of its own, loaded when it is called. These modules import nothing slow before
they act: SQLAlchemy and oslo.messaging together take longer to load than most answers take to give.
"""
