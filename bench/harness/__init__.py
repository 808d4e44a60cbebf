"""The bench's harness: starts systems, takes their times, writes the results.

Python's standard library only. bench/run is what people call; it says
`python3 -m harness NAME ...`. A bench is a module of this package that `__main__` names.
"""
