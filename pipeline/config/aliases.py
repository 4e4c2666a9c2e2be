"""What others call our settings: stable-baselines3, CleanRL, RLlib, Sample Factory, SEED RL, Acme, TorchBeast.

Asked before likeness of spelling is: ``gamma`` is spelt like ``lambda`` and ``max_grad_norm`` like ``max_lag``, but
they mean ``discount`` and ``clip_norm``. What a name means can depend on the algorithm.
"""

from __future__ import annotations

from functools import cache

from pipeline.config import schema

ALGORITHM: schema.Path = ("training", "algorithm")
_UPDATE = "training.batch_size, in unrolls of training.unroll_length transitions"
_STEPS = "run.max_steps, in agent steps"
_FRAMES = "run.max_steps, in agent steps of environment.frame_skip frames each"
_NO_CLIP = "vtrace.clip_rho and vtrace.clip_pg_rho bound the importance weights; PPO's clipped loss is not there"
_NO_POLICY = "r2d2 learns Q-values and has no such term; vtrace has {}"
_NO_REPLAY = "vtrace keeps no replay: store.capacity is how many unrolls may wait; with training.algorithm r2d2, {}"
_EPOCHS = "each unroll is used for one update; with training.algorithm r2d2, replay.samples_per_insert"
_ALGORITHMS = "training.algorithm, vtrace or r2d2, and a section of that name holds its settings"
_EXPLORES = "the policy itself explores: vtrace.entropy_cost; with training.algorithm r2d2, {}"

ROWS: tuple[tuple[str, str, str], ...] = (
    # others' names; with vtrace; with r2d2 (empty: the same)
    ("gamma discount_factor discounting discount", "vtrace.discount", "r2d2.discount"),
    ("gae_lambda lambda lam vtrace_lambda", "vtrace.lambda", _NO_POLICY.format("vtrace.lambda")),
    ("lr learning_rate initial_learning_rate step_size", "training.optimizer.learning_rate", ""),
    (
        "lr_schedule learning_rate_schedule anneal_lr lr_decay lr_scheduler use_linear_lr_decay",
        "training.optimizer.learning_rate_schedule.kind",
        "",
    ),
    ("n_steps num_steps", "training.unroll_length", "training.unroll_length; n of the targets is r2d2.n_steps"),
    ("rollout_fragment_length rollout rollout_length", "training.unroll_length", ""),
    ("unroll_len trace_length sequence_length seq_len max_seq_len", "training.unroll_length", ""),
    ("n_step nstep multi_step bootstrap_n", "training.unroll_length", "r2d2.n_steps"),
    ("vf_coef value_coef vf_loss_coeff value_loss_coeff value_loss_coef", "vtrace.baseline_cost", ""),
    ("critic_coef baseline_loss_weight", "vtrace.baseline_cost", ""),
    ("ent_coef entropy_coef entropy_coeff exploration_loss_coeff", "vtrace.entropy_cost", ""),
    (
        "entropy_loss_coeff entropy_bonus entropy_beta entropy_cost_coef entropy_regularization",
        "vtrace.entropy_cost",
        "",
    ),
    ("target_entropy", "vtrace.entropy_target", ""),
    ("kl_coeff kl_coef kl_loss_coeff", "vtrace.kl_cost", ""),
    (
        "max_grad_norm grad_clip clip_grad_norm grad_norm_clipping gradient_clip clip_gradients grad_norm",
        "training.optimizer.clip_norm",
        "",
    ),
    ("eps adam_eps adam_epsilon optimizer_eps rmsprop_eps", "training.optimizer.epsilon", ""),
    ("adam_beta1 beta1", "training.optimizer.beta_1", ""),
    ("adam_beta2 beta2", "training.optimizer.beta_2", ""),
    ("alpha rmsprop_alpha rms_alpha", "training.optimizer.decay", ""),
    ("rho_bar clip_rho_threshold vtrace_clip_rho_threshold vtrace_rho", "vtrace.clip_rho", ""),
    ("c_bar clip_c_threshold vtrace_c", "vtrace.clip_c", ""),
    ("pg_rho_threshold clip_pg_rho_threshold vtrace_clip_pg_rho_threshold", "vtrace.clip_pg_rho", ""),
    (
        "clip_param clip_range clip_coef ppo_clip_ratio clip_epsilon clip_range_vf vf_clip_param clip_vloss",
        _NO_CLIP,
        _NO_POLICY.format("vtrace.clip_rho"),
    ),
    ("num_envs n_envs num_environments num_actors n_actors", "workers.envs, of each of workers.count workers", ""),
    ("num_envs_per_worker num_envs_per_env_runner envs_per_worker env_batch_size", "workers.envs", ""),
    ("num_workers n_workers num_env_runners num_rollout_workers", "workers.count", ""),
    ("worker_num_splits", "workers.groups", ""),
    ("total_timesteps total_steps num_timesteps max_timesteps timesteps_total num_steps_total", _STEPS, ""),
    ("train_for_env_steps max_env_steps env_steps", _STEPS, ""),
    ("total_frames num_frames total_environment_frames num_env_frames max_frames", _FRAMES, ""),
    ("train_for_seconds time_budget max_time time_limit_seconds", "run.max_seconds", ""),
    ("stop_return target_return reward_threshold stop_reward", "run.solved_return", ""),
    ("train_batch_size minibatch_size sgd_minibatch_size mini_batch_size learner_batch_size", _UPDATE, ""),
    (
        "n_epochs num_epochs update_epochs num_sgd_iter ppo_epoch num_batches_per_epoch",
        _EPOCHS,
        "replay.samples_per_insert",
    ),
    (
        "train_frequency train_freq gradient_steps utd_ratio replay_ratio training_intensity",
        _EPOCHS,
        "replay.samples_per_insert",
    ),
    (
        "buffer_size replay_buffer_size replay_size memory_size max_replay_size replay_capacity",
        _NO_REPLAY.format("replay.capacity"),
        "replay.capacity, in unrolls of training.unroll_length transitions",
    ),
    (
        "learning_starts min_replay_size warmup_steps replay_start_size num_steps_sampled_before_learning_starts",
        _NO_REPLAY.format("replay.min_size"),
        "replay.min_size, in unrolls of training.unroll_length transitions",
    ),
    (
        "prioritized_replay_alpha per_alpha priority_alpha",
        _NO_REPLAY.format("replay.priority_exponent"),
        "replay.priority_exponent",
    ),
    (
        "prioritized_replay_beta per_beta importance_sampling_exponent",
        _NO_REPLAY.format("replay.importance_exponent"),
        "replay.importance_exponent",
    ),
    (
        "target_network_update_freq target_update_interval target_network_frequency target_update_freq",
        "r2d2.target_update_period",
        "",
    ),
    ("tau polyak", "the target network is copied whole: r2d2.target_update_period", ""),
    ("burn_in_length replay_burn_in zero_init_states", "r2d2.burn_in", ""),
    ("double_dqn use_double", "r2d2.double_q", ""),
    ("dueling", "r2d2.dueling_hidden", ""),
    (
        "exploration_fraction exploration_initial_eps exploration_final_eps start_e end_e epsilon epsilon_greedy",
        _EXPLORES.format("r2d2.epsilon_base"),
        "r2d2.epsilon_base and r2d2.epsilon_alpha: epsilon differs between environments, and never changes",
    ),
    ("reward_clipping clip_rewards clip_reward max_abs_reward", "vtrace.reward_clip", "r2d2.reward_clip"),
    ("reward_scaling", "vtrace.reward_scale", "r2d2.reward_scale"),
    (
        "normalize_input norm_obs observation_normalization obs_normalization normalize_obs",
        "network.normalize_observations",
        "",
    ),
    ("normalize_returns norm_reward popart use_popart", "vtrace.normalize_values", ""),
    ("normalize_advantage norm_adv", "vtrace.normalize_values divides advantages, too", ""),
    ("net_arch fcnet_hiddens hidden_sizes hidden_size hidden_units encoder_mlp_layers layers", "network.hidden", ""),
    ("fcnet_activation activation_fn nonlinearity", "network.activation", ""),
    ("use_lstm lstm_cell_size lstm_hidden_size rnn_size rnn_num_layers use_rnn", "network.lstm, its units", ""),
    ("lstm_use_prev_action use_prev_action", "network.previous_action", ""),
    ("lstm_use_prev_reward use_prev_reward", "network.previous_reward", ""),
    ("policy policy_class model encoder_conv_architecture", "network.name", ""),
    ("vf_share_layers actor_critic_share_weights share_features_extractor", "network.separate_value, its opposite", ""),
    ("env env_id env_name environment_name gym_id task game", "environment.id", ""),
    ("env_config env_kwargs env_args", "environment.kwargs", ""),
    ("wrapper wrapper_class env_wrappers", "environment.wrappers", ""),
    ("framestack env_framestack num_stack n_stack stack_size", "environment.frame_stack", ""),
    ("env_frameskip frameskip action_repeat num_action_repeats", "environment.frame_skip", ""),
    ("terminal_on_life_loss episodic_life", "environment.life_loss, terminal", ""),
    ("random_seed", "run.seed", ""),
    ("device num_gpus cuda gpu num_gpus_per_learner", "learner.training_devices and learner.inference_devices", ""),
    ("mixed_precision use_bf16 fp16", "network.precision", ""),
    ("jit use_jit xla compile", "learner.jit_compile", ""),
    ("inference_batch_size", "learner.inference_batch", ""),
    ("max_policy_lag max_staleness", "training.max_lag", ""),
    ("log_interval experiment_summaries_interval log_freq", "run.log_interval_seconds", ""),
    ("save_freq save_every_sec checkpoint_freq checkpoint_interval save_interval", "checkpoint.interval_seconds", ""),
    ("keep_checkpoints keep_checkpoints_num num_to_keep", "checkpoint.keep", ""),
    ("n_eval_episodes eval_episodes evaluation_duration num_eval_episodes", "evaluation.episodes", ""),
    ("n_eval_envs num_eval_envs", "evaluation.envs", ""),
    ("evaluation_num_env_runners evaluation_num_workers num_eval_workers", "evaluation.workers", ""),
    ("redis redis_url redis_address", "store.url", ""),
    ("server_address address", "broker.bind and broker.connect", ""),
    ("algo agent ppo a2c a3c appo impala sac td3 ddpg dqn apex rainbow trainer", _ALGORITHMS, ""),
)


def suggest(key: str, algorithm: str) -> str:
    """What is said after an unknown key: what the name of others is here, else which key is spelt like it, or nothing.

    Args:
        key: dotted; the last part counts, the parts before it where two sections have such a setting.
        algorithm: of the run, as far as one was named.
    """
    meaning = meaning_of(key, algorithm)
    return schema.suggest_key(key) if meaning is None else f" (here: {meaning})"


def meaning_of(key: str, algorithm: str) -> str | None:
    """What the name of others is here, in words that begin with our key where there is one; None: no such name."""
    *section, name = key.split(".")
    row = _meanings().get(_plain(name))
    if row is None or _misspelt(section, name):
        return None
    vtrace, r2d2 = row
    ours = key_in(vtrace)
    there = (*section, ours[-1]) if ours else ()
    if there in schema.leaves() and (there != ours or section == ["vtrace"]):
        return ".".join(there)
    if algorithm != "r2d2":
        return vtrace
    if r2d2:
        return r2d2
    return _NO_POLICY.format(vtrace) if ours and ours[0] == "vtrace" else vtrace


def key_in(meaning: str) -> schema.Path | None:
    """The setting that a meaning begins with."""
    path = tuple(meaning.partition(" ")[0].rstrip(",;").split("."))
    return path if path in schema.leaves() else None


def _misspelt(section: list[str], name: str) -> bool:
    """Whether the section has a setting of that name but for underscores."""
    return any(path[:-1] == tuple(section) and _plain(path[-1]) == _plain(name) for path in schema.leaves())


@cache
def _meanings() -> dict[str, tuple[str, str]]:
    return {_plain(name): (vtrace, r2d2) for names, vtrace, r2d2 in ROWS for name in names.split()}


def _plain(name: str) -> str:
    """``numEnvs``, ``num-envs`` and ``num_envs`` are one name."""
    return name.lower().replace("_", "").replace("-", "")
