"""What a job may ask for beside GPUs: which amounts are read, and the words that refuse the others."""

import pytest

from controlplane.fields import Refused
from jobs.fields.kubernetes import extra_resources

EFA = "vpc.amazonaws.com/efa"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({EFA: "4"}, {EFA: "4"}),
        ({EFA: 4}, {EFA: "4"}),
        ({EFA: 2**62}, {EFA: str(2**62)}),
        ({"ephemeral-storage": "20Gi"}, {"ephemeral-storage": "20Gi"}),
        ({"hugepages-2Mi": "512Mi"}, {"hugepages-2Mi": "512Mi"}),
        ({"hugepages-1Gi": 2**30}, {"hugepages-1Gi": str(2**30)}),
    ],
)
def test_amounts_are_kept_as_text(given, kept):
    assert extra_resources(given) == kept


@pytest.mark.parametrize(
    "amount", ["999999999999T", 2**62 + 1, pytest.param(10**5000, id="long"), "5000P", "9" * 20]
)
def test_more_than_any_machine_has_is_refused(amount):
    with pytest.raises(Refused) as refused:
        extra_resources({EFA: amount})
    assert (refused.value.code, refused.value.suffix) == ("out_of_range", "/vpc.amazonaws.com~1efa")


@pytest.mark.parametrize("amount", ["", "0", 0, -1, True, 4.0, None, "four", "20K", "-1Gi", "1.5", "9" * 65])
def test_what_is_no_amount_is_told_what_one_looks_like(amount):
    with pytest.raises(Refused, match=r"a whole number above 0, .* such as 4 or 20Gi") as refused:
        extra_resources({EFA: amount})
    assert refused.value.code == "bad_quantity"


@pytest.mark.parametrize(("pages", "amount"), [("2Mi", "3Mi"), ("2Mi", "1"), ("1Gi", "1536Mi"), ("2Mi", 5)])
def test_pages_come_whole(pages, amount):
    with pytest.raises(Refused, match=f"Pages are of {pages} here") as refused:
        extra_resources({f"hugepages-{pages}": amount})
    assert (refused.value.code, refused.value.suffix) == ("not_whole_pages", f"/hugepages-{pages}")


def test_pages_of_nothing_are_no_resource():
    with pytest.raises(Refused) as refused:
        extra_resources({"hugepages-0Mi": "2Mi"})
    assert refused.value.code == "not_an_extra_resource"


def test_a_bad_name_is_told_in_words():
    with pytest.raises(Refused) as refused:
        extra_resources({"a b": "1"})
    assert refused.value.detail == "The name 'a b' must be like vendor.com/thing."
    assert (refused.value.code, refused.value.suffix) == ("bad_name", "/a b")
