"""Groups of the three protocols and of goNELI, side by side on one broker: the parts of the benchmark `protocols`.

side      one group: how it is started, at its default or its shortest times; its leaders, and whether it is shared
schedule  kills, clean stops and starts, at all sides together; how long each took, and which members it touched
goneli    processes of goNELI, queried and judged like ours
appended  the records that a group at rest appends to the broker, read back from it
"""
