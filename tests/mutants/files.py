"""Breakages of the readers of files from outside."""

from mutants.mutation import Mutation

FILES = (
    Mutation(
        "depth-without-limit", "qfunc.files.json_text:parse",
        "if (depth := _depth(text)) > DEEPEST:",
        "if (depth := _depth(text)) > DEEPEST**3:",
        "tests/files/test_messages.py::test_texts_that_are_refused",
    ),
    Mutation(
        "a-changed-file-is-run", "qfunc.proof.saved_check:_changed",
        "if found.get(n) != expected[n]",
        "if n not in found",
        "tests/test_command_line.py::test_a_runtime_is_not_started_on_a_damaged_file",
    ),
    Mutation(
        "the-last-of-two-keys", "qfunc.files.json_text:parse",
        "if len(found) < len(pairs):",
        "if len(found) > len(pairs):",
        "tests/files/test_messages.py::test_texts_that_are_refused",
    ),
    Mutation(
        "true-is-a-count", "qfunc.files.fields:Count.misfit",
        "type(value) is int and",
        "isinstance(value, int) and",
        "tests/files/test_messages.py::test_values_that_are_not_as_declared",
    ),
    Mutation(
        "a-report-of-any-fields", "qfunc.lowering.report_fields:read_report",
        "require(fields, parse(content, file), file)",
        "parse(content, file)",
        "tests/files/test_damaged_files.py::test_damage_ends_in_one_error",
        case="verify artifact",
    ),
    Mutation(
        "a-link-for-a-file", "qfunc.files.folder:open_file",
        "if path.is_symlink():",
        "if not path:",
        "tests/files/test_messages.py::test_links_pipes_and_giants",
    ),
    Mutation(
        "tensors-beyond-the-file", "qfunc.files.tensors:_require_header",
        "if last > size:",
        "if last > size * 2:",
        "tests/files/test_messages.py::test_headers_of_tensors",
    ),
    Mutation(
        "constants-of-other-files", "qfunc.files.onnx_model:_require_whole",
        "if tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL:",
        "if False:",
        "tests/files/test_messages.py::test_tensors_in_other_files",
    ),
)  # fmt: skip
