"""Tables, engine, database clock, migrations and one repository per table.

The order in which rows are locked, everywhere: lock row, retry rows, leases by id, order, inserts. A transaction that
keeps to it
cannot deadlock with another that does.
"""
