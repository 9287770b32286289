"""An upload from the wire to the store, whatever the form is that it comes in."""

from collections.abc import Callable, Sequence

from starlette.requests import Request

from app.datasets import service
from app.datasets.inspecting import inspect_upload
from app.datasets.preview import suffix_of
from app.datasets.receive import FIELDS, Received, receive
from app.datasets.schemas import UploadForm
from app.datasets.temporary import temporary_folder
from app.models import Dataset
from app.settings import get_settings
from app.storage import get_store
from app.store_threads import in_store_thread


async def take_upload(
    request: Request,
    project_id: str,
    form_of: Callable[[Received], UploadForm],
    fields: Sequence[str] = FIELDS,
) -> Dataset:
    """Receive a file, look through it and keep it; raises what these three raise.

    `form_of` says what the data set is told of, by what arrived.
    """
    settings = get_settings()
    with temporary_folder(settings.home) as folder:
        received = await receive(request, folder / "upload", settings.upload_max_bytes, fields)
        form = form_of(received)
        service.check_form(form, received.sha256)
        received.path = received.path.rename(folder / f"upload{suffix_of(form.file_name)}")
        found = await inspect_upload(received.path, form.file_name)
        return await in_store_thread(
            service.keep_upload, get_store(), project_id, form, received, found
        )
