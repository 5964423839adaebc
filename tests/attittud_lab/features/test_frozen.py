"""The checksum of an encoder's files."""

from attittud_lab.features.frozen import checksum


def test_the_checksum_is_of_names_and_every_byte(tmp_path):
    names, weights = tmp_path / "names.json", tmp_path / "weights.bin"
    found = set()
    for content in (b"abc", b"abd", b"bbc"):
        names.write_bytes(b"{}")
        weights.write_bytes(content)
        found.add(checksum([names, weights]))
        assert checksum([weights, names]) in found
    found.add(checksum([names, weights.rename(tmp_path / "other.bin")]))
    assert len(found) == 4
