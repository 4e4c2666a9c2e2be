"""The configuration tree: every setting of seedmq, its type, default, bounds and meaning.

Read once by ``pipeline.config.load`` and passed down in pieces. Field descriptions are the text of
``docs/configuration.md``. Units stand in the names. Maths and state machines never see this module.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from pipeline.config.evaluation import EvaluationSection
from pipeline.config.metrics import MetricsSection
from pipeline.config.network import NetworkSection
from pipeline.config.r2d2 import R2d2Section
from pipeline.config.replay import ReplaySection
from pipeline.config.section import Seconds, Section
from pipeline.config.store import StoreSection

MOST_SLOTS = 2**20  # of one learner: its recurrent state and open unrolls are as large as so many
Device = Annotated[str, Field(pattern=r"^(auto|(cpu|gpu):[0-9]+)$")]


class RunSection(Section):
    seed: int = Field(1, ge=0, lt=2**31)
    """Seed of networks, of all draws, and of environments. A restart or resume draws on: nothing is drawn twice."""
    max_steps: int | None = Field(None, gt=0)
    """Stop after this many trained agent steps (valid transitions)."""
    max_seconds: float | None = Field(None, gt=0)
    """Stop after this many seconds, over crashes and resumes: from the first environment step of each learner process
    to its end, and while there is none, from the moment it waits for one. Over before the first update: exit 3."""
    solved_return: float | None = None
    """Stop when the mean return of the last `solved_episodes` training episodes reaches this: environments weighed
    equally, once each has had its turn, and never before an update."""
    solved_episodes: int = Field(100, gt=0)
    """How many finished episodes the mean of `solved_return` and `episode_return_mean` is over; at least the last one
    of each environment."""
    log_interval_seconds: Seconds = Field(1.0, gt=0)
    """How often `summary.json` and TensorBoard are written, and the progress in a terminal (elsewhere every 5 s)."""
    log_bytes: int = Field(16 * 2**20, ge=2**16)
    """Of each component's log under `seedmq run`, environments' output included. A larger one becomes `<name>.log.1`
    and begins anew, and says how much was left out by then."""
    drain_timeout_seconds: Seconds = Field(8.0, gt=0)
    """How long an orderly stop may take before what is left is killed."""


class EnvironmentSection(Section):
    id: str = Field(min_length=1)
    """A gymnasium id; `package.module:Name-v0` imports the module first."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of `gymnasium.make` (or of the environment's own vector version)."""
    wrappers: list[str] = Field(default_factory=list)
    """Wrappers by import path, `package.module:callable`, applied in order to each single environment."""
    vectorization: Literal["auto", "native", "sync"] = "auto"
    """`native`: the environment's own vector version; `sync`: single ones, one after the other; `auto`: native where
    there is one and no wrappers are set."""
    frame_stack: int = Field(1, ge=1, le=16)
    """Frames stacked along the last axis, on the learner's device; single frames travel and are stored."""
    stack_padding: Literal["zero", "repeat"] = "zero"
    """What stands before an episode's first frame in a stack: zeros, or the first frame again."""
    frame_skip: int = Field(1, ge=1)
    """Emulator frames per agent step: counts `frames`, and is handed to environments that take it (ALE)."""
    step_timeout_seconds: Seconds = Field(30.0, gt=0)
    """A `step` that takes longer counts as hung: its stack is logged and the worker's environments are made anew."""
    reset_timeout_seconds: Seconds = Field(120.0, gt=0)
    """The same for making and resetting."""
    non_finite: Literal["drop", "error"] = "error"
    """A NaN or infinite reward or observation: abandon the episode and count it, or fail."""
    life_loss: Literal["ignore", "terminal"] = "ignore"
    """`terminal`: a step that loses a life (`info["lives"]` falls, as in ALE) ends what is learnt: its discount is 0.
    The episode, its return and the recurrent state go on."""
    fault_budget: int = Field(10, ge=0)
    """Environment faults (exception, hang, too much memory) that a worker survives within ten minutes, with growing
    delays; the same one in the first steps of three tries ends it at once."""
    max_memory_bytes: int | None = Field(None, gt=0)
    """A worker whose environments' process is larger than this (resident set) delivers what it has taken and makes them
    anew: a fault, `env_memory`. Programs that environments start are not counted. Default: no bound."""

    @model_validator(mode="after")
    def _native_without_wrappers(self) -> EnvironmentSection:
        if self.vectorization == "native" and self.wrappers:
            raise ValueError(
                "environment.vectorization = native takes no environment.wrappers: a vector entry point refuses them"
            )
        return self


class WorkersSection(Section):
    count: int = Field(1, ge=0)
    """Worker processes under `seedmq run`, replicas under compose (`SEEDMQ_WORKERS`)."""
    envs: int = Field(64, gt=0)
    """Environments per worker in all, split evenly over `groups` (`SEEDMQ_ENVS_PER_WORKER`)."""
    groups: int = Field(2, gt=0)
    """Env groups per worker: one steps while another waits for its actions."""
    mode: Literal["train", "eval"] = "train"
    """`eval` workers feed nothing into the store and report apart."""
    restart_budget: int = Field(10, ge=0)
    """Restarts of a worker process within ten minutes before the run fails."""
    reply_timeout_seconds: Seconds = Field(5.0, gt=0)
    """A request unanswered for so long is sent again; after twice that the connection is made anew."""
    connect_timeout_seconds: Seconds = Field(60.0, gt=0)
    """A worker that reaches no broker for so long at start exits 4."""
    id: str | None = Field(None, min_length=1, max_length=200)
    """Logical worker id; default host name and process id."""

    @model_validator(mode="after")
    def _divisible(self) -> WorkersSection:
        if self.envs % self.groups:
            raise ValueError(f"workers.envs = {self.envs} cannot be split evenly over workers.groups = {self.groups}")
        return self


class BrokerSection(Section):
    placement: Literal["embedded", "process"] = "embedded"
    """`embedded`: the learner's inference thread serves workers itself; `process`: `seedmq broker` does."""
    bind: str = "tcp://127.0.0.1:5555"
    """Worker-facing endpoint that the broker binds."""
    connect: str | None = None
    """Endpoint that workers connect to; default `bind`."""
    learner_bind: str = "tcp://127.0.0.1:5556"
    """Learner-facing endpoint that the broker process binds."""
    learner_connect: str | None = None
    """Endpoint that learners connect to; default `learner_bind`."""
    min_rows: int = Field(1, ge=1)
    """Rows a batch waits for, at most `max_wait_seconds`."""
    max_wait_seconds: Seconds = Field(0.0, ge=0)
    """How long a batch may wait for `min_rows`."""
    lease_seconds: Seconds = Field(10.0, gt=0)
    """A worker unheard of for so long is gone; its slots are flushed."""
    heartbeat_seconds: Seconds = Field(1.0, gt=0)
    """How often workers and learners say that they live."""
    max_workers: int = Field(4096, gt=0)
    """Workers admitted at once; more are refused."""
    max_message_bytes: int = Field(64 * 2**20, gt=0)
    """Frames larger than this are refused by the socket before memory is touched; a message as a whole may have twice
    this."""
    max_messages_per_second: int = Field(20_000, gt=0)
    """Messages of one connection; more are dropped, and it is cut off (on `ipc://` without keys not bounded)."""
    max_connections: int = Field(8192, gt=0)
    """Connections at once to each endpoint (and never more than the process may have files); more are cut off."""

    @model_validator(mode="after")
    def _heartbeats_within_lease(self) -> BrokerSection:
        if self.heartbeat_seconds >= self.lease_seconds:
            raise ValueError(
                f"broker.lease_seconds = {self.lease_seconds:g} must be longer than "
                f"broker.heartbeat_seconds = {self.heartbeat_seconds:g}"
            )
        return self


class LearnerSection(Section):
    inference_devices: list[Device] = Field(default_factory=lambda: ["auto"], min_length=1)
    """Devices of the policy: `auto`, or `cpu:0`, `gpu:1`... A demanded device that is missing is an error."""
    training_devices: list[Device] = Field(default_factory=lambda: ["auto"], min_length=1)
    """Devices of the gradients; any overlap with `inference_devices` is allowed."""
    inference_batch: int = Field(512, gt=0)
    """Most rows in one inference batch."""
    slots: int | None = Field(None, gt=0)
    """Environments served at once; more wait. Default: twice those that are configured, and at least 1024 where memory
    does for so many; where it does not even for those configured, or for what is set here, the learner refuses."""
    inference_in_flight: int | None = Field(None, ge=1, le=4)
    """Inference batches in flight. Default: 2 on GPUs, so that copying and computing overlap; 1 on CPUs."""
    intra_op_threads: int = Field(0, ge=0)
    """TensorFlow threads within an operation; 0 lets TensorFlow choose."""
    inter_op_threads: int = Field(0, ge=0)
    """TensorFlow threads across operations; 0 lets TensorFlow choose."""
    jit_compile: bool = False
    """Compile policy and training step with XLA."""
    restart_budget: int = Field(3, ge=0)
    """Restarts of the learner, the broker or the embedded store within ten minutes before `seedmq run` fails."""


class ScheduleSection(Section):
    kind: Literal["constant", "linear"] = "constant"
    """`linear` goes from the value to `final` over `frames` environment frames."""
    final: float = Field(0.0, ge=0)
    """Value at the end of a linear schedule."""
    frames: int | None = Field(None, gt=0)
    """Environment frames of a linear schedule; required for it."""

    @model_validator(mode="after")
    def _has_frames(self) -> ScheduleSection:
        if self.kind == "linear" and self.frames is None:
            raise ValueError("a linear schedule needs frames")
        return self


class OptimizerSection(Section):
    name: Literal["adam", "rmsprop"] = "adam"
    """Optimizer of the weights."""
    learning_rate: float = Field(1e-3, gt=0)
    """Initial learning rate."""
    learning_rate_schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    """How the learning rate changes with environment frames."""
    beta_1: float = Field(0.9, ge=0, lt=1)
    """Adam's first decay."""
    beta_2: float = Field(0.999, ge=0, lt=1)
    """Adam's second decay."""
    decay: float = Field(0.99, ge=0, lt=1)
    """RMSProp's decay."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """RMSProp's momentum."""
    epsilon: float = Field(1e-7, gt=0)
    """Epsilon of either optimizer, outside the root for Adam; RMSProp's stands inside it."""
    clip_norm: float | None = Field(1.0, gt=0)
    """Clip the reduced gradient to this global norm; none means no clipping."""


class VtraceSection(Section):
    discount: float = Field(0.99, ge=0, le=1)
    """gamma."""
    lambda_: float = Field(0.95, ge=0, le=1, alias="lambda")
    """lambda: mixes c (V-trace paper, remark 2)."""
    clip_rho: float = Field(1.0, gt=0)
    """rho-bar of the value targets."""
    clip_c: float = Field(1.0, gt=0)
    """c-bar."""
    clip_pg_rho: float = Field(1.0, gt=0)
    """rho-bar of the policy gradient."""
    normalize_values: bool = True
    """Learn values in units of their own spread (PopArt): relative to the running mean and standard deviation of vs, by
    which advantages are divided too. Then the settings below suit rewards of any size."""
    baseline_cost: float = Field(0.5, ge=0)
    """Weight of the value loss 0.5 (vs - V)^2."""
    entropy_cost: float | None = Field(None, ge=0)
    """Weight of the entropy bonus. Default: 0.01 where the observations are pictures that are convolved, else 0.003."""
    entropy_cost_schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    """How the entropy cost changes with environment frames."""
    entropy_target: float | None = None
    """Learn the entropy cost so that the mean entropy stays at this."""
    entropy_adjustment_speed: float = Field(10.0, gt=0)
    """Speed of the learnt entropy cost's logarithm."""
    kl_cost: float = Field(0.0, ge=0)
    """Weight of log mu - log pi."""
    reward_scale: float = Field(1.0, gt=0)
    """Rewards are multiplied by this in the loss (before clipping)."""
    reward_clip: float | None = Field(None, gt=0)
    """Rewards are clipped to +- this in the loss."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """`mean` (SEED) or `sum` (IMPALA, TorchBeast) over valid rows."""
    head_initializer: Literal["orthogonal", "glorot_uniform"] = "orthogonal"
    """First weights of the policy and the value layer: `orthogonal`, with gain 0.01 and 1, or Keras' default (SEED)."""

    model_config = ConfigDict(populate_by_name=True)


class TrainingSection(Section):
    algorithm: Literal["vtrace", "r2d2"] = "vtrace"
    """The algorithm: its section holds its settings."""
    unroll_length: int = Field(20, ge=1)
    """T: transitions per unroll; an unroll has T + 1 rows. With `r2d2` the learnt ones: `r2d2.burn_in` more rows stand
    before them."""
    batch_size: int = Field(16, ge=1)
    """Unrolls per update, over all training devices."""
    prefetch_batches: int = Field(2, ge=1)
    """Batches decoded ahead of the training loop."""
    max_lag: int | None = Field(None, ge=0)
    """Drop unrolls whose oldest row acted more than so many updates before the one that consumes it; off by default."""
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    """The optimizer."""


class CheckpointSection(Section):
    interval_seconds: Seconds = Field(30.0, gt=0)
    """How often a checkpoint is written; one more at the end."""
    keep: int = Field(3, gt=0)
    """How many are kept."""


class SecuritySection(Section):
    keys: str | None = None
    """Directory of CURVE keys (`seedmq keys DIR`); required for endpoints off the loopback."""
    insecure: bool = False
    """Allow endpoints off the loopback without keys."""


class Config(Section):
    """The whole tree."""

    run: RunSection = Field(default_factory=RunSection)
    """One run: seed, when it stops, how often it reports."""
    environment: EnvironmentSection
    """The environment."""
    workers: WorkersSection = Field(default_factory=WorkersSection)
    """Environment workers."""
    broker: BrokerSection = Field(default_factory=BrokerSection)
    """The broker between workers and learner."""
    learner: LearnerSection = Field(default_factory=LearnerSection)
    """Devices and inference."""
    network: NetworkSection = Field(default_factory=NetworkSection)
    """The network."""
    training: TrainingSection = Field(default_factory=TrainingSection)
    """Unrolls, batches, optimizer."""
    vtrace: VtraceSection = Field(default_factory=VtraceSection)
    """The V-trace loss."""
    r2d2: R2d2Section = Field(default_factory=R2d2Section)
    """R2D2: its loss and its exploration."""
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)
    """Evaluation beside training."""
    replay: ReplaySection = Field(default_factory=ReplaySection)
    """The replay of off-policy algorithms: what is kept, and how it is sampled."""
    store: StoreSection = Field(default_factory=StoreSection)
    """Where unrolls are stored."""
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    """Checkpoints."""
    security: SecuritySection = Field(default_factory=SecuritySection)
    """Keys."""
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    """What Prometheus, and whoever asks whether a process is alive and ready, is told."""

    @property
    def environments(self) -> int:
        """Environments that are configured, for training and for evaluation."""
        return self.workers.count * self.workers.envs + self.evaluation.workers * self.evaluation.envs

    @property
    def slots(self) -> int:
        """``learner.slots``, or its default: workers of other machines than this one may come too."""
        return self.learner.slots or max(1024, 2 * self.environments)

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        workers, largest = self.workers, self.learner.inference_batch
        if self.training.algorithm == "vtrace" and self.training.batch_size > self.store.capacity:
            raise ValueError(
                f"store.capacity = {self.store.capacity} unrolls can never fill "
                f"training.batch_size = {self.training.batch_size}"
            )
        tolerance = self.replay.tolerance
        if tolerance is not None and 2 * tolerance < self.training.batch_size:
            raise ValueError(
                f"replay.tolerance = {tolerance} samples is below half of "
                f"training.batch_size = {self.training.batch_size}: inserts and samples could wait for each other"
            )
        if self.training.algorithm == "r2d2" and self.r2d2.burn_in >= self.training.unroll_length:
            raise ValueError(
                f"r2d2.burn_in = {self.r2d2.burn_in} rows are not fewer than the learnt ones, "
                f"training.unroll_length = {self.training.unroll_length}: set one of the two, or begin with the preset "
                f"cartpole_r2d2, by --set environment.id=..."
            )
        evaluating = self.evaluation.workers * self.evaluation.envs
        if evaluating and self.evaluation.envs > largest:
            raise ValueError(
                f"evaluation.envs = {self.evaluation.envs} are one group, which does not fit "
                f"learner.inference_batch = {largest}"
            )
        if self.slots > MOST_SLOTS:
            raise ValueError(
                f"learner.slots = {self.slots}, or twice the environments of workers.envs = {workers.envs} and "
                f"evaluation.envs = {self.evaluation.envs}, is above {MOST_SLOTS}"
            )
        if self.environments > self.slots:
            raise ValueError(
                f"workers.count = {workers.count} times workers.envs = {workers.envs} environments"
                + (f" and {evaluating} that evaluate" if evaluating else "")
                + f" do not fit learner.slots = {self.slots}"
            )
        if self.evaluation.solved_return is not None and not self.evaluation.workers:
            raise ValueError("evaluation.solved_return needs evaluation.workers")
        if (rows := self.broker.min_rows) > largest:
            raise ValueError(f"broker.min_rows = {rows} can never be reached in learner.inference_batch = {largest}")
        return self
