from attrs import frozen
@frozen
class OnnxRuntime:
    def run(self, a, i): ...
@frozen
class Qdq:
    def lower(self, m, s): ...
