"""The schema's history; docs/operations.md, Upgrade, says how it may change."""

# The oldest code that works on the newest schema here, named by the newest revision it has. Raise
# it with a revision that takes away what that code needs, or guards what it does otherwise.
OLDEST_CODE = "0004"
