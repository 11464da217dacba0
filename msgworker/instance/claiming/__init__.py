"""The claim loop: when to look, how much to claim, where, which rows are read, which of them are
heads, their flags, and whether all is done.

A look reads rows and proposes heads; a claim flags them, or finds that others were faster. `Finder`
has a search for each limited topic, and one for all others: a `TableSearch`, or in slices a
`SliceSearch`. A search keeps its places in the table from look to look, so that a look costs little
however many rows wait. `HeadChooser` chooses among the rows of one look.

In order: loop, capacity, finder, search, passes, heads, claimer.
"""
