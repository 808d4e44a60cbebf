"""The bench's harness: starts systems, measures their times, and writes the results.

It uses only Python's standard library. Users run bench/run, which runs
`python3 -m harness NAME ...`. A bench is a module of this package that `__main__` lists.
"""
