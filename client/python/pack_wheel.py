"""pack_wheel.py FOLDER WHEEL: packs a folder with a .dist-info as a wheel, with its RECORD."""

import base64
import hashlib
import pathlib
import sys
import zipfile

folder, wheel = pathlib.Path(sys.argv[1]), sys.argv[2]
(info,) = folder.glob("*.dist-info")
record = info / "RECORD"
record.unlink(missing_ok=True)
files = sorted(path for path in folder.rglob("*") if path.is_file())
lines = []
for path in files:
    data = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    lines.append(f"{path.relative_to(folder)},sha256={digest},{len(data)}")
lines.append(f"{record.relative_to(folder)},,")
record.write_text("\n".join(lines) + "\n")
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
    for path in [*files, record]:
        archive.write(path, path.relative_to(folder))
