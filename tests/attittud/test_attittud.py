"""The public names: each is documented."""

import inspect

import attittud


def test_every_public_name_is_documented():
    things = {name: getattr(attittud, name) for name in attittud.__all__}
    for name, owner in list(things.items()):
        for member, value in vars(owner).items() if inspect.isclass(owner) else ():
            if not member.startswith("_") and (
                inspect.isroutine(value) or isinstance(value, property)
            ):
                things[f"{name}.{member}"] = value
    assert not [name for name, thing in things.items() if not inspect.getdoc(thing)]
