"""What tus answers beside the errors of every other call.

ServiceError
├── OffsetMismatch    409  the bytes do not begin where the upload ends
├── Expired           410  the upload was not finished in time
├── WrongVersion      412  a version of tus that is not spoken here
├── WrongMediaType    415  a PATCH that is not application/offset+octet-stream
└── WrongChecksum     460  the bytes are not those of Upload-Checksum: they were dropped
"""

from app.errors import ServiceError


class OffsetMismatch(ServiceError):
    """The bytes do not begin where the upload ends."""

    status = 409
    title = "Conflict"

    def __init__(self, offset: int, received: int) -> None:
        message = (
            f"this upload has {received} bytes, so it goes on at Upload-Offset {received}, not "
            f"{offset}: ask HEAD for the offset, and let one client send at a time"
        )
        super().__init__(message, "offset_mismatch")


class Expired(ServiceError):
    """The upload was not finished in time."""

    status = 410
    title = "Gone"

    def __init__(self, upload_id: str) -> None:
        message = f"upload {upload_id} was not finished in time and is gone: begin another one"
        super().__init__(message, "upload_expired")


class WrongVersion(ServiceError):
    """A version of tus that is not spoken here."""

    status = 412
    title = "Precondition failed"

    def __init__(self, version: str) -> None:
        super().__init__(f"Tus-Resumable {version!r}: only 1.0.0 is spoken here", "tus_version")


class WrongMediaType(ServiceError):
    """A PATCH that is not application/offset+octet-stream."""

    status = 415
    title = "Unsupported media type"

    def __init__(self, media_type: str) -> None:
        message = f"send Content-Type application/offset+octet-stream, not {media_type!r}"
        super().__init__(message, "unsupported_media_type")


class WrongChecksum(ServiceError):
    """The bytes are not those of Upload-Checksum: they were dropped."""

    status = 460
    title = "Checksum mismatch"

    def __init__(self) -> None:
        message = "the bytes that arrived are not those of Upload-Checksum: send them again"
        super().__init__(message, "checksum_mismatch")
