"""What of vLLM's is wrapped is wrapped once, whoever asks again, and is called as before."""

from __future__ import annotations

from ledger.hook.vllm.wrapping import wrap_once


def counted(original):
    def call(*args, **kwargs):
        return ("around", original(*args, **kwargs))

    return call


def test_a_method_is_wrapped_once_and_keeps_its_name():
    class Engine:
        def step(self, number):
            """A step."""
            return number

    for _ in range(3):
        wrap_once(Engine, "step", counted)
    assert Engine().step(7) == ("around", 7)
    assert (Engine.step.__name__, Engine.step.__doc__) == ("step", "A step.")


def test_a_class_method_that_comes_bound_is_called_through_its_class_or_an_instance():
    class Request:
        @classmethod
        def made_of(cls, message):
            return (cls, message)

    for _ in range(2):
        wrap_once(Request, "made_of", counted)
    assert Request.made_of("m") == Request().made_of("m") == ("around", (Request, "m"))


def test_what_a_class_inherits_wrapped_is_not_wrapped_again():
    class Base:
        def step(self):
            return "step"

    class Engine(Base):
        pass

    wrap_once(Base, "step", counted)
    wrap_once(Engine, "step", counted)
    assert Engine().step() == ("around", "step")
