"""What can go wrong with a back-up.

BackupFailed              it could not be taken or restored; the message says what to do
└── Damaged               a file of the back-up is missing or is not what its manifest says
"""


class BackupFailed(Exception):
    """A back-up could not be taken or restored; nothing half-made is left."""


class Damaged(BackupFailed):
    """The back-up is not whole; the message names the files."""
