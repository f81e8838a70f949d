"""Groups of the three protocols and of goNELI, side by side on one broker: the parts of the benchmark `protocols`.

side      one group: how it is started, at its default or its shortest times; who leads, and whether it is shared
schedule  kills, clean stops and starts, at all sides at once; what each took, and whom else it touched
goneli    processes of goNELI, asked and judged as ours are
appended  what a group at rest appends to the broker, read back from it
"""
