"""Runs one notebook headless; how it went is told by the exception, never by the file it leaves."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillExecutionError
from traitlets import default

from eagle3lab.errors import LabError

# What papermill logs (a dead kernel, say) is told by the status; a program that wants it can still listen.
logging.getLogger("papermill").addHandler(logging.NullHandler())

OK, FAILED, NOT_RUN, TIMEOUT, DIED = "ok", "failed", "not run", "timeout", "kernel died"
GIVEN = ("CASE", "INTERACTIVE", "OUT")  # the parameters that the report sets itself, in every notebook


class Usage(LabError):
    """The report was asked for something that cannot be: the command line answers with exit code 2."""


@dataclass(frozen=True)
class Run:
    """How one notebook went.

    Attributes:
        status: ``ok``, ``failed``, ``not run``, ``timeout`` or ``kernel died``.
        seconds: wall time, kernel start included.
        error: one line on what went wrong, empty when nothing did.
        node: the notebook as far as it got.
        stopped: index of the cell it stopped at, None when it ran to the end or never started.
    """

    status: str
    seconds: float
    error: str
    node: nbformat.NotebookNode
    stopped: int | None = None


class Kernels:
    """The kernels of one report: all run the interpreter that runs the report, and can be ended together."""

    def __init__(self, jobs: int = 1) -> None:
        # kernels that run side by side share the cores: more threads than cores would only wait for each other
        threads = str(max(1, (os.cpu_count() or 1) // max(1, jobs)))
        self.live: list[AsyncKernelManager] = []
        self.stopped = False
        kernels = self

        class Own(AsyncKernelManager):
            """Starts this interpreter, wherever a kernelspec ``python3`` of user or system points."""

            @default("kernel_spec_manager")
            def _no_installed_specs(self) -> KernelSpecManager:
                # Without folders to look in, ``python3`` is ipykernel's own spec: sys.executable.
                return KernelSpecManager(kernel_dirs=[], parent=self)

            async def _async_pre_start_kernel(self, **arguments: Any) -> Any:
                arguments["env"] = {"OMP_NUM_THREADS": threads, **os.environ, **arguments.get("env", {})}
                return await super()._async_pre_start_kernel(**arguments)

            async def _async_post_start_kernel(self, **arguments: Any) -> None:
                await super()._async_post_start_kernel(**arguments)
                kernels.live.append(self)
                if kernels.stopped:
                    kernels.stop()

        self.manager = Own

    def stop(self) -> None:
        """Ends every kernel at once; the threads that wait for them then see a dead kernel and return."""
        self.stopped = True
        for manager in self.live:
            process = getattr(manager.provisioner, "process", None)
            if process is not None:
                process.kill()


def run(notebook: Path, parameters: Mapping[str, object], timeout: int, kernels: Kernels) -> Run:
    """Executes ``notebook`` in its own folder; meant for worker threads, several at a time.

    Args:
        notebook: the source; it is not written to.
        parameters: what to inject; each must be declared by the notebook (`fit`).
        timeout: seconds a cell may take.
        kernels: where the kernel comes from.

    Returns:
        The run, whatever happened: errors of the notebook are not raised.
    """
    started = time.monotonic()
    status, error, stopped = OK, "", None
    # Papermill's own file holds absolute paths until it is cleaned: it has no place in the report's folder.
    with tempfile.TemporaryDirectory() as folder:
        executed = Path(folder) / "executed.ipynb"
        try:
            papermill.execute_notebook(
                notebook,
                executed,
                parameters=dict(parameters),
                kernel_name="python3",
                progress_bar=False,
                start_timeout=300,  # the first import from a busy network file system takes its time
                execution_timeout=timeout,
                kernel_manager_class=kernels.manager,
                # The kernel's own remarks, on its sockets say, would land in the caller's terminal.
                extra_arguments=["--log-level=CRITICAL"],
                # Not papermill's ``cwd``: that changes the folder of this process, under the other threads.
                resources={"metadata": {"path": str(notebook.parent)}},
            )
        except PapermillExecutionError as failure:
            status, error, stopped = FAILED, f"{failure.ename}: {failure.evalue}", failure.cell_index
        except CellTimeoutError:
            status, error = TIMEOUT, f"a cell took longer than {timeout} s"
        except DeadKernelError:
            status, error = DIED, "the kernel died while a cell ran; running out of memory is the usual cause"
        except Exception as failure:
            # A kernel that dies at start raises a plain RuntimeError.
            status = DIED if "Kernel died" in str(failure) else FAILED
            error = f"{type(failure).__name__}: {failure}"
        finally:
            # nbclient leaves the thread an open event loop, with its sockets; none if it never came to run.
            with contextlib.suppress(RuntimeError):
                asyncio.get_event_loop().close()
        seconds = time.monotonic() - started
        node = nbformat.read(executed if executed.is_file() else notebook, as_version=4)
    node.cells = [c for c in node.cells if "papermill-error-cell-tag" not in c.metadata.get("tags", [])]
    if status in (TIMEOUT, DIED):
        # Papermill marks every later cell completed then; only a start time tells which ones were reached.
        begun = [i for i, c in enumerate(node.cells) if c.metadata.get("papermill", {}).get("start_time")]
        stopped = begun[-1] if begun else None
    return Run(status, seconds, error, node, stopped)


def fit(notebooks: list[Path], wanted: Mapping[str, object]) -> dict[Path, dict[str, object]]:
    """Deals ``wanted`` out to the notebooks that declare each parameter, in the type they declare.

    Raises:
        Usage: a parameter that no notebook declares, that the report sets itself, or that does not fit its
            type; or a notebook that would not take the case, and so would report on another one.
    """
    declared = {notebook: papermill.inspect_notebook(notebook) for notebook in notebooks}
    faults = [f"{name}: set by the report itself" for name in wanted if name in GIVEN]
    known = {name for parameters in declared.values() for name in parameters} - set(GIVEN)
    faults += [
        f"{name}: no such parameter; known are {', '.join(sorted(known))}"
        for name in wanted
        if name not in known and name not in GIVEN
    ]
    dealt: dict[Path, dict[str, object]] = {}
    for notebook, parameters in declared.items():
        missing = [name for name in GIVEN if name not in parameters]
        if missing:
            faults.append(f"{notebook.name}: its parameters cell lacks {', '.join(missing)}")
        dealt[notebook] = {}
        for name in wanted.keys() & parameters.keys() - set(GIVEN):
            try:
                dealt[notebook][name] = _typed(wanted[name], parameters[name])
            except (ValueError, SyntaxError):
                kind = parameters[name]["inferred_type_name"]
                faults.append(f"{notebook.name}: {name}: found {wanted[name]!r}, expected {kind}")
    if faults:
        raise Usage("\n".join(dict.fromkeys(faults)))
    return dealt


def _typed(value: object, declared: Mapping[str, Any]) -> object:
    """A command line knows only text: ``value`` in the type of the parameter's default."""
    example = ast.literal_eval(declared["default"])
    if isinstance(value, str) and not isinstance(example, str):
        value = ast.literal_eval(value.title() if value in ("true", "false") else value)
    if type(value) is int and type(example) is float:
        value = float(value)
    if example is not None and type(value) is not type(example):
        raise ValueError(value)
    return value
