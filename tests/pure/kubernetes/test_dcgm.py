"""From DCGM exporter's series to what devices and pods do."""

import pytest

from controlplane.engines.base import DeviceReport, DeviceShare, EngineUnreachable, NodeReport
from controlplane.engines.kubernetes.dcgm import Holding, read_gpus, usage_of


def node(name: str = "dgx1-1", gpus: int = 2) -> NodeReport:
    devices = tuple(DeviceReport(index, f"{name}/{index}", "A100", 40960) for index in range(gpus))
    return NodeReport(name, "default", devices, 64_000, 512_000, True)


def holding(pod: str, *indexes: int, milli: int = 1000) -> Holding:
    return Holding(
        pod, ("yard-team-a", pod), "dgx1-1", tuple(DeviceShare(index, milli, 0) for index in indexes)
    )


def series(name: str, value: float | str, gpu: int, pod: str = "", **labels: str) -> dict:
    metric = {"__name__": f"DCGM_FI_DEV_{name}", "gpu": str(gpu), "UUID": f"GPU-{gpu}", "Hostname": "dgx1-1"}
    if pod:
        metric |= {"exported_namespace": "yard-team-a", "exported_pod": pod, "exported_container": "main"}
    metric |= {"namespace": "gpu-operator", "pod": "dcgm-exporter-x2v", **labels}
    return {"metric": metric, "value": [1_700_000_000.0, str(value)]}


def usage(answer: list[dict], *holdings: Holding, gpus: int = 2):
    read = read_gpus(lambda path, query: {"status": "success", "data": {"result": answer}})
    return usage_of([node(gpus=gpus)], holdings, read)


def test_a_pods_gpus_take_the_places_that_it_holds():
    answer = [
        series("GPU_UTIL", 80, 0, "job-1-0"),
        series("FB_USED", 1000, 0, "job-1-0"),
        series("GPU_UTIL", 5, 1),
    ]
    first, second = usage(answer, holding("job-1-0", 1))
    assert (first.utilization, first.pods) == (0.05, ())
    assert (second.utilization, second.memory_used_mib) == (0.8, 1000)
    assert [(pod.pod_name, pod.utilization, pod.memory_used_mib) for pod in second.pods] == [
        ("job-1-0", 0.8, 1000)
    ]


def test_a_pod_of_two_gpus_has_their_mean():
    answer = [series("GPU_UTIL", 100, 0, "job-1-0"), series("GPU_UTIL", 50, 1, "job-1-0")]
    first, second = usage(answer, holding("job-1-0", 0, 1))
    assert (first.utilization, second.utilization) == (1.0, 0.5)
    assert first.pods[0].utilization == 0.75


def test_sharers_of_one_gpu_split_its_memory():
    answer = [series("GPU_UTIL", 60, 0, "job-1-0"), series("FB_USED", 1000, 0, "job-1-0")]
    shared = usage(answer, holding("job-1-0", 0, milli=500), holding("job-2-0", 0, milli=500))[0]
    assert shared.utilization == 0.6
    assert [(pod.pod_name, pod.memory_used_mib) for pod in shared.pods] == [
        ("job-1-0", 500),
        ("job-2-0", 500),
    ]


def test_the_exact_figure_wins_over_the_coarse_one():
    exact = series("GPU_UTIL", 99, 0)
    exact["metric"]["__name__"] = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    exact["value"][1] = "0.31"
    assert usage([series("GPU_UTIL", 100, 0), exact])[0].utilization == 0.31


def test_what_no_series_tells_is_not_made_up():
    first, second = usage([series("GPU_UTIL", "NaN", 0)], holding("job-1-0", 1))
    assert (first.utilization, second.utilization) == (None, None)
    assert second.pods[0].utilization is None


def test_the_exporters_own_pod_is_no_user():
    answer = [series("GPU_UTIL", 70, 0, pod="", container="")]
    assert usage(answer, holding("dcgm-exporter-x2v", 1))[0].utilization == 0.7


def test_labels_that_prometheus_left_alone_name_the_pod():
    answer = [series("GPU_UTIL", 70, 1, namespace="yard-team-a", pod="job-1-0", container="main")]
    answer[0]["metric"]["pod"] = "job-1-0"
    assert usage(answer, holding("job-1-0", 0))[0].utilization == 0.7


def test_places_of_pods_without_series_are_filled_last():
    """A series without a pod belongs to nobody of ours while there is a place that nobody of ours holds."""
    first, second = usage([series("GPU_UTIL", 40, 0)], holding("job-1-0", 0))
    assert (first.utilization, second.utilization) == (None, 0.4)


def test_gpus_of_other_nodes_and_too_many_gpus_do_no_harm():
    elsewhere = series("GPU_UTIL", 90, 0, Hostname="other")
    answer = [elsewhere, *(series("GPU_UTIL", 10 * number, number) for number in range(4))]
    assert [report.utilization for report in usage(answer)] == [0.0, 0.1]


@pytest.mark.parametrize(
    "answer", [None, {}, {"data": {"result": [{"metric": {}}]}}, {"data": {"result": 7}}, []]
)
def test_an_answer_that_is_none_is_said(answer):
    with pytest.raises(EngineUnreachable):
        read_gpus(lambda path, query: answer)
