"""The rule of an address is in the module of the app that answers there."""

from tests.access.routes import API, routes
from tests.access.rules import OWNERS


def test_a_rule_is_with_the_app_that_has_the_view() -> None:
    views = {route: getattr(view, "view_class", view) for route, view in routes()}
    apps = {route: view.__module__.partition(".")[0] for route, view in views.items()}
    wrong = [
        f"{owner}: {prefix}{route} is answered by {apps[prefix + address]}"
        for owner, rules in OWNERS.items()
        for prefix, table in ((API, "REST"), ("", "PAGES"))
        for route in getattr(rules, table, {})
        for address in (route.partition("?")[0],)
        if apps.get(prefix + address, owner) != owner
    ]
    assert not wrong, "\n".join(wrong)
