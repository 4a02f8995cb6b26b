"""What an endpoint method can say about its message."""

import pytest
from oslo_messaging import ExplicitRPCAccessPolicy

from retryflow.queue import delivery
from retryflow.queue.wire import Request
from retryflow.tracking import TrackingEndpointWrapper


class Endpoint:
    @delivery.expose(late_acknowledge=True)
    def late(self, _context: object) -> str:
        return "late"

    @delivery.expose
    def early(self, _context: object) -> str:
        return "early"

    @delivery.expose()
    def early_too(self, _context: object) -> str:
        return "early too"

    def hidden(self, _context: object) -> str:
        return "hidden"


class Settler:
    def __init__(self) -> None:
        self.said: list[tuple[str, delivery.Delivery]] = []

    def claimed(self, message: delivery.Delivery) -> None:
        self.said.append(("claimed", message))

    def unwanted(self, message: delivery.Delivery) -> None:
        self.said.append(("unwanted", message))


def message() -> delivery.Delivery:
    return delivery.Delivery(Request({"method": "late"}, {}, "1", None, None, None))


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "tracked"])
def test_only_exposed_methods_can_be_called_and_late_ones_are_known(wrapped: bool) -> None:
    endpoint = TrackingEndpointWrapper(Endpoint()) if wrapped else Endpoint()
    policy = ExplicitRPCAccessPolicy()
    allowed = {name: policy.is_allowed(endpoint, name) for name in ("late", "early", "early_too", "hidden")}
    assert allowed == {"late": True, "early": True, "early_too": True, "hidden": False}
    late = {name: delivery.is_late(getattr(endpoint, name)) for name in allowed}
    assert late == {"late": True, "early": False, "early_too": False, "hidden": False}


def test_an_exposed_method_is_still_itself() -> None:
    assert Endpoint().late(None) == "late"
    assert Endpoint().early_too(None) == "early too"


def test_outside_of_a_message_nothing_happens() -> None:
    delivery.acknowledge()
    delivery.hand_back()


def test_a_method_speaks_of_its_own_message() -> None:
    settler, outer, inner = Settler(), message(), message()
    with delivery.delivering(settler, outer):
        with delivery.delivering(settler, inner):
            delivery.acknowledge()
        delivery.hand_back()
    delivery.acknowledge()
    assert settler.said == [("claimed", inner), ("unwanted", outer)]


def test_what_was_handed_back_is_named() -> None:
    request = Request(
        {"method": "m", "args": {"order_id": "o", "task_id": "t", "request_id": "r"}}, {}, "1", None, None, None
    )
    assert delivery.HandedBack.of(request) == delivery.HandedBack("m", "r", "o", "t")
    assert delivery.HandedBack.of(message().request) == delivery.HandedBack("late", None, None, None)
