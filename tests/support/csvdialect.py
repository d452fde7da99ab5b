"""Files of CSV, and the users that both runtimes must read, or the words with which both must
refuse them.

tests/unit/test_arrow_table.py reads them by Arrow, tests/spark/test_csv_dialect.py by Spark.
"""

LIKED = "user,item,label\nann,tea,1\n"
DIALECT = {  # name: (content by file, options, users or words)
    "quotes": (
        {"a.csv": 'user,item,label\n"a""b",tea,1\nd\\e,tea,0\n"c\\",tea,1\nf"g,tea,1\n'},
        {},
        ['a"b', "d\\e", "c\\", 'f"g'],
    ),
    "text after quotes": (
        {"a.csv": f'{LIKED}"b"b,tea,0\n'},
        {},
        "a.csv has text after a closing quote",
    ),
    "a backslash": (
        {"a.csv": f'{LIKED}"a\\"b",tea,0\n'},
        {},
        "a.csv has text after a closing quote",
    ),
    "blanks": ({"a.csv": "\ufeffuser,item,label\r\n ann ,tea,1\r\n  \r\n"}, {}, [" ann "]),
    "a column without a name": ({"a.csv": ",user,item,label\n0,ann,tea,1\n"}, {}, ["ann"]),
    "a fourth field": (
        {"a.csv": f"{LIKED}bob,tea,0,9\n"},
        {},
        "more or fewer fields than its header: 'bob,tea,0,9'",
    ),
    "two fields": (
        {"a.csv": f"{LIKED}bob,tea\n"},
        {},
        "more or fewer fields than its header: 'bob,tea'",
    ),
    "a line break": (
        {"a.csv": f'{LIKED}"b\nb",tea,1\n'},
        {},
        "more or fewer fields than its header",
    ),
    "a line break that is expected": (
        {"a.csv": f'{LIKED}"b\nb",tea,1\n'},
        {"multiLine": "true"},
        ["ann", "b\nb"],
    ),
    "nulls": (
        {"a.csv": 'user,item,label\n"",tea,1\n,tea,1\nNA,tea,1\n"NA",tea,1\nbob,tea,1\n'},
        {"nullValue": "NA"},
        [None, None, None, None, "bob"],
    ),
    "nothing": ({"a.csv": ""}, {}, "is empty: a CSV file has a header line"),
    "neither true nor false": (
        {"a.csv": LIKED},
        {"header": "maybe"},
        "header must be true or false, not 'maybe'",
    ),
    "the same header": (
        {"a.csv": LIKED, "b.csv": "User,ITEM,label\nbob,tea,0\n", "c.csv": ""},
        {},
        ["ann", "bob"],
    ),
    "unnamed columns of two files": (
        {"a.csv": ",user,item,label\n0,ann,tea,1\n", "b.csv": ",user,item,label\n0,bob,tea,1\n"},
        {},
        ["ann", "bob"],
    ),
    "two columns of one name in two files": (
        {
            "a.csv": "user,item,label,n,N\nann,tea,1,2,3\n",
            "b.csv": "user,item,label,n,N\nbob,tea,1,2,3\n",
        },
        {},
        "has several columns named 'n': give each column of a folder its own name",
    ),
    "two columns of one name in one file": (
        {"a.csv": "user,item,label,n,N\nann,tea,1,2,3\n"},
        {},
        ["ann"],
    ),
    "numbered columns of two files": (
        {
            "a.csv": "user,item,label,n3,n4\nann,tea,1,2,3\n",
            "b.csv": "user,item,label,n3,n4\nbob,tea,1,2,3\n",
        },
        {},
        ["ann", "bob"],
    ),
    "another header": (
        {"a.csv": LIKED, "b.csv": "item,user,label\ntea,eve,0\n"},
        {},
        "b.csv has another header line than other files",
    ),
    "another file": (
        {"a.csv": LIKED, "README.md": "# Ratings\n"},
        {},
        "also holds README.md, which is no csv file",
    ),
}


def written(folder, name):
    """The path of the files, and their options."""
    contents, options, _ = DIALECT[name]
    for file, content in contents.items():
        (folder / file).write_bytes(content.encode())
    return str(folder if len(contents) > 1 else folder / "a.csv"), options
