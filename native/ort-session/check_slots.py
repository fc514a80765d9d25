"""Compares the slots in src/ort_api.h with the function table in the crate ort-sys (src/lib.rs), which lists it in its order.
usage: check_slots.py …/ort-sys-2.0.0-rc.15/src/lib.rs
"""
import pathlib, re, sys

ours = {name: int(slot) for slot, name in re.findall(r'F\((\d+), [^,]+, (\w+), ', (pathlib.Path(__file__).parent / 'src/ort_api.h').read_text())}
text = pathlib.Path(sys.argv[1]).read_text()
body = text[text.index('pub struct OrtApi {'):]
body = body[:body.index('\n}\n')]
names = list(dict.fromkeys(re.findall(r'^\tpub (\w+):', body, re.M)))  # a function that is there twice, for browsers and for all others, has one slot
wrong = {name: (slot, names.index(name) if name in names else None) for name, slot in ours.items() if name not in names or names.index(name) != slot}
print(f'{len(ours)} slots compared with a table of {len(names)}: ' + ('all the same' if not wrong else f'differing (ours, theirs): {wrong}'))
sys.exit(1 if wrong or not ours else 0)
