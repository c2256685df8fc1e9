"""The names of other libraries that the front uses and that are not public: one table per library.

A name is written `module:path`. The path ends in what is needed: an attribute of a module or a class, one that objects
of the class get, or one that a function gives to what it is called with; after `()`, one that any code of the module
gives. `why` ends the sentence "lading needs it to …". `private_names.py` looks for the names when the front first meets
the library.

A test compares these tables with the code: a private name that the front uses and no table lists fails it.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Name:
    """One name. `parameters`: what a function's parameters begin with, without self. `since` and `before`: the versions
    of the library that have it, if not all that lading works with. `otherwise`: what lading does without it, where it
    can."""

    path: str
    why: str
    parameters: tuple[str, ...] = ()
    since: str = ""
    before: str = ""
    otherwise: str = ""


@dataclasses.dataclass(frozen=True)
class Table:
    """Of one library. `parts`: names by what makes the front use them, since a model rarely uses all."""

    library: str
    versions: str  # that lading works with
    parts: dict[str, tuple[Name, ...]]


def _each(owner: str, names: str, why: str) -> tuple[Name, ...]:
    """Several names of one owner, for one purpose."""
    separator = "." if ":" in owner else ":"
    return tuple(Name(f"{owner}{separator}{name}", why) for name in names.split())


_TORCH_CORE = (
    Name("torch._C:_swap_tensor_impl", "give a tensor object other memory"),
    Name("torch._C:TensorBase.data", "notice writes through .data"),
    *_each("torch._C", "DisableTorchFunction _DisableAutocast", "run its own operators unrecorded"),
    Name("torch._C:_disabled_torch_dispatch_impl", "tell plain tensors from subclasses made of other tensors"),
    Name("torch._C:_nn._parse_to", "follow Tensor.to in a constructor"),
    Name("torch._C:_dispatch_has_kernel_for_dispatch_key", "know which operators autocast changes"),
    *_each("torch._C", "_only_lift_cpu_tensors _set_only_lift_cpu_tensors", "record torch.tensor(…, device=…)"),
    *_each("torch", "_conj _neg_view", "make a recorded view again"),
    Name("torch._ops:OpOverload._schema", "know what an operator reads and writes"),
    *_each("torch:Tensor", "_backward_hooks _post_accumulate_grad_hooks", "keep the hooks of a tensor that it fills"),
    Name("torch:Tensor._version", "notice that a tensor was written after its constructor"),
    Name("torch:Tensor._make_wrapper_subclass", "stand for a parameter in a flat one"),
    Name("torch:UntypedStorage._cdata", "know which tensors share memory"),
    *_each("torch.nn:Module", "_parameters _buffers _modules _non_persistent_buffers_set", "list what a module holds"),
    Name("torch.nn:Module._forward_pre_hooks", "find hooks that compute a weight"),
    *_each(
        "torch.nn:Module",
        "_load_from_state_dict _save_to_state_dict _load_state_dict_pre_hooks _load_state_dict_post_hooks "
        "_state_dict_hooks _state_dict_pre_hooks",
        "find code of a module that changes what load_state_dict reads",
    ),
    Name("torch.nn.modules.module:_WrappedHook.hook", "find who wrote such code"),
    *_each("torch.nn:RNNBase", "_flat_weights _flat_weights_names", "keep an RNN's list of weights up to date"),
    Name("torch.nn.utils.parametrize:_cache", "drop what parametrize.cached() computed from old weights"),
    Name("torch.nn.utils.weight_norm:WeightNorm", "compute a normed weight again"),
    Name("torch.nn.utils.spectral_norm:SpectralNorm.compute_weight", "compute a normed weight again"),
    Name(
        "torch.nn.init:_no_grad_trunc_normal_",
        "record trunc_normal_ as one operator",
        ("tensor", "mean", "std", "a", "b", "generator"),
    ),
    Name("torch.utils._python_dispatch:TorchDispatchMode", "record what a constructor does"),
    Name("torch.utils._python_dispatch:_disable_current_modes", "run its own operators unrecorded"),
    Name(
        "torch.utils._python_dispatch:TorchDispatchMode._should_skip_dynamo",
        "start recording without importing Dynamo",
        since="2.13",
        otherwise="the first recording takes a second longer, if torch imports Dynamo for it",
    ),
    *_each("torch.utils._device", "DeviceContext _device_constructors", "follow torch.device blocks in a constructor"),
    *_each("torch.utils._pytree", "tree_flatten tree_map", "find the tensors in an operator's arguments"),
    Name("torch.overrides:_get_current_function_mode_stack", "follow torch.device blocks in a constructor"),
)

_TORCH_GROUPS = (
    Name("torch.distributed.distributed_c10d:_get_default_group", "find the ranks that load together"),
    Name("torch.distributed.distributed_c10d:_get_process_group_store", "let these ranks agree", ("pg",)),
    Name("torch.distributed:ProcessGroup._get_backend", "know whether GPU memory can be sent as it is"),
    Name("torch.distributed:ProcessGroupGloo", "exchange bytes between ranks"),
)

_SPEC = "torch.distributed.tensor._dtensor_spec"
_TORCH_DTENSOR = (
    *_each("torch.distributed.tensor:DTensor", "_local_tensor _spec", "find this rank's part of a DTensor"),
    Name("torch.distributed.tensor:DTensor.__new__", "give a DTensor other memory", ("local_tensor", "spec")),
    *_each(f"{_SPEC}:DTensorSpec", "tensor_meta shard_order", "know how a DTensor is sharded"),
    Name(f"{_SPEC}:TensorMeta", "change a DTensor's dtype", ("shape", "stride", "dtype")),
    Name(
        "torch.distributed.tensor.placement_types:_StridedShard.split_factor",
        "know how a DTensor is sharded by FSDP2 over tensor parallelism",
    ),
    Name("torch.distributed.device_mesh:DeviceMesh._get_root_mesh", "know how meshes of one model fit together"),
)

_FSDP2 = "torch.distributed.fsdp._fully_shard"
_TORCH_FSDP2 = (
    *_TORCH_DTENSOR,
    *_each("torch.distributed.fsdp:FSDPModule", "_get_fsdp_state reshard", "find FSDP2's units"),
    Name(f"{_FSDP2}._fsdp_state:FSDPState._fsdp_param_groups", "find FSDP2's units", since="2.12"),
    Name(f"{_FSDP2}._fsdp_state:FSDPState._fsdp_param_group", "find FSDP2's units", before="2.12"),
    *_each(
        f"{_FSDP2}._fsdp_param_group:FSDPParamGroup",
        "fsdp_params mesh_info device mp_policy offload_policy",
        "know what FSDP2 gathers together, and in which dtype",
    ),
    *_each(
        f"{_FSDP2}._fsdp_param_group:FSDPParamGroup",
        "is_sharded _to_sharded _all_gather_result",
        "give up what FSDP2 has gathered from old weights",
    ),
    *_each(
        f"{_FSDP2}._fsdp_param:FSDPParam", "sharded_param fsdp_placement mesh_info", "know how FSDP2 shards a parameter"
    ),
    Name(f"{_FSDP2}._fsdp_param:FSDPParam.reset_sharded_param", "tell FSDP2 of the memory that was filled"),
    Name(
        f"{_FSDP2}._fsdp_state:_register_group_forward_hooks",
        "put modules into one unit that each cast their inputs",
        ("modules", "pre_hook", "post_hook", "modules_to_run", "cast_output_dtype"),
        since="2.13",
        otherwise="shard_by_dtype makes each module a unit of its own",
    ),
)

_FSDP1 = "torch.distributed.fsdp"
_TORCH_FSDP1 = (
    Name(f"{_FSDP1}:FullyShardedDataParallel._handle", "find FSDP1's flat parameters"),
    Name(f"{_FSDP1}:FullyShardedDataParallel._fsdp_wrapped_module", "name parameters as they were before FSDP1"),
    *_each(
        f"{_FSDP1}._flat_param:FlatParamHandle",
        "flat_param process_group uses_sharded_strategy is_sharded _offload_params",
        "know how FSDP1 shards a flat parameter",
    ),
    *_each(
        f"{_FSDP1}._flat_param:FlatParameter",
        "_params _param_infos _shapes _numels_with_padding _is_padding_mask _shared_param_infos _param_extensions "
        "_fqns _local_shard",
        "know which parameters lie where in a flat one",
    ),
    *_each(
        f"{_FSDP1}._flat_param:FlatParameter",
        "_full_param_padded _full_prec_full_param_padded",
        "notice that FSDP1 has gathered old weights",
    ),
    Name(f"{_FSDP1}._flat_param:ParamInfo", "know whose parameter it is", ("param_name", "module", "module_name")),
    Name(
        f"{_FSDP1}._runtime_utils:_reshard",
        "give up what FSDP1 has gathered",
        ("state", "handle", "free_unsharded_flat_param"),
    ),
)

_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
_IN_BACKWARD = "torch.distributed.optim.apply_optimizer_in_backward"
TORCH = Table(
    "torch",
    "2.11, 2.12 or 2.13",
    {
        "": _TORCH_CORE,
        "process groups": _TORCH_GROUPS,
        "DTensor": _TORCH_DTENSOR,
        "FSDP2": _TORCH_FSDP2,
        "FSDP1": _TORCH_FSDP1,
        "compile": (
            Name("torch._dynamo.eval_frame:OptimizedModule._orig_mod", "name parameters as they were before compile()"),
        ),
        "activation checkpointing": (
            Name(
                f"{_WRAPPER}:ActivationWrapper._checkpoint_wrapped_module",
                "name parameters as they were before they were wrapped",
            ),
        ),
        "DDP": (
            Name(
                "torch.nn.parallel.distributed:()._mp_param",
                "tell DDP's own casts from copies that a load leaves stale",
            ),
        ),
        "optimizer in backward": (
            Name(
                f"{_IN_BACKWARD}:_apply_optimizer_in_backward._in_backward_optimizers",
                "notice that an optimizer steps in the backward pass",
            ),
        ),
    },
)

_LOADING = "transformers.core_model_loading"
_MAPPING = "transformers.conversion_mapping"
_MODEL = "transformers.modeling_utils:PreTrainedModel"
_AUTO = "transformers.models.auto.auto_factory"
TRANSFORMERS = Table(
    "transformers",
    "5.17 to 5.22",
    {
        "": (
            Name(
                f"{_LOADING}:rename_source_key",
                "rename a checkpoint's keys",
                ("source_key", "weight_renamings", "weight_converters", "base_model_prefix", "meta_state_dict"),
            ),
            Name(f"{_LOADING}:dot_natural_key", "convert keys in transformers' order"),
            Name(f"{_LOADING}:build_glob_alternation", "know which tensors stay in float32"),
            *_each(f"{_LOADING}:WeightRenaming", "source_patterns compiled_sources scope_prefix", "rename keys"),
            *_each(
                f"{_LOADING}:WeightConverter",
                "source_patterns compiled_sources scope_prefix operations",
                "convert tensors",
            ),
            Name(
                f"{_LOADING}:WeightConverter.add_tensor",
                "convert tensors",
                ("target_key", "source_key", "source_pattern", "future"),
            ),
            Name(f"{_LOADING}:WeightConverter.convert", "convert tensors", ("layer_name",)),
            Name(f"{_MAPPING}:get_model_conversion_mapping", "find a model's conversions", ("model",)),
            *_each(_MODEL, "_init_weights initialize_weights", "initialise what no file has, as transformers does"),
            Name(f"{_LOADING}:()._is_hf_initialized", "say what is loaded, so that it is not initialised"),
            *_each(_MODEL, "_keep_in_fp32_modules _keep_in_fp32_modules_strict", "know which tensors stay in float32"),
            *_each(
                _MODEL,
                "_keys_to_ignore_on_load_missing _keys_to_ignore_on_load_unexpected",
                "know which keys may be missing, or are of no use",
            ),
            *_each(_MODEL, "all_tied_weights_keys get_expanded_tied_weights_keys", "know which tensors are tied"),
            *_each(_MODEL, "_no_split_modules base_model_prefix", "find a model's blocks, and its base model"),
            *_each(
                "transformers.configuration_utils:PreTrainedConfig",
                "_attn_implementation _experts_implementation",
                "choose how attention and experts are computed",
            ),
        ),
        "saving": (
            Name(f"{_LOADING}:revert_weight_conversion", "write the keys that it writes", ("model", "state_dict")),
            Name(f"{_LOADING}:()._weight_conversions", "write the keys that it has read"),
            Name(
                "transformers.modeling_utils:remove_tied_weights_from_state_dict",
                "write one key of a tie",
                ("state_dict", "model"),
            ),
            Name(f"{_MODEL}._keys_to_ignore_on_save", "leave out what it leaves out"),
        ),
        "DeepSpeed": (
            *_each(
                "transformers.integrations.deepspeed",
                "_hf_deepspeed_config_weak_ref set_hf_deepspeed_config unset_hf_deepspeed_config",
                "build a model of transformers without a zero.Init of its own",
            ),
        ),
        "remote code": (
            Name(f"{_AUTO}:_BaseAutoModelClass._model_mapping", "find registered classes"),
            Name(f"{_AUTO}:add_generation_mixin_to_remote_model", "make a checkpoint's class"),
        ),
    },
)

_INIT = "deepspeed.runtime.zero.partition_parameters:Init"
_STAGE3 = "deepspeed.runtime.zero.stage3:DeepSpeedZeroOptimizer_Stage3"
DEEPSPEED = Table(
    "deepspeed",
    "0.19.8",
    {
        "": (
            Name("deepspeed.comm.comm:cdb", "know whether DeepSpeed is in use"),
            Name("deepspeed.runtime.base_optimizer:DeepSpeedOptimizer", "find DeepSpeed's master weights"),
            Name("deepspeed.runtime.engine:DeepSpeedEngine.optimizer", "find DeepSpeed's master weights"),
            *_each(
                _INIT,
                "ds_id ds_tensor ds_shape ds_status ds_process_group",
                "know which partition of a parameter a rank has",
            ),
            *_each(_INIT, "ds_secondary_tensor ds_zero_param_process_group", "fill ZeRO++'s secondary partition"),
            *_each(
                "deepspeed.runtime.zero.stage3:()",
                "ds_quant_scale final_location",
                "refuse partitions that it cannot fill",
            ),
            Name(
                "deepspeed.runtime.zero.partition_parameters:()._ds_z3_gathered_param_context_depth",
                "refuse parameters that are in use",
            ),
            Name(f"{_INIT}.ds_active_sub_modules", "refuse parameters that are in use"),
            *_each(_STAGE3, "_z3_optimizer fp16_groups", "find the master weights of ZeRO-3"),
            Name(f"{_STAGE3}.set_local_hp_param", "write the master weights of ZeRO-3", ("value", "param")),
            *_each(_STAGE3, "get_local_fp32_param get_param_id grad_position", "compare the master weights of ZeRO-3"),
        ),
        "optimizer state": _each(
            _STAGE3,
            "fp16_groups fp32_partitioned_groups_flat sub_group_to_group_id swap_optimizer dtype",
            "save the optimizer state of ZeRO-3",
        ),
        "masters": (
            *_each(
                "deepspeed.runtime.zero.stage_1_and_2:DeepSpeedZeroOptimizer",
                "bit16_groups bit16_groups_flat refresh_fp32_params _zero_optimizer",
                "make the master weights of ZeRO-1 and ZeRO-2 again",
            ),
            Name(
                "deepspeed.utils.mixed_precision_linkage:()._hp_mapping",
                "compare the master weights of ZeRO-1 and ZeRO-2",
            ),
            *_each(
                "deepspeed.runtime.bf16_optimizer:BF16_Optimizer",
                "bf16_groups bf16_groups_flat refresh_fp32_params",
                "make master weights again",
            ),
            *_each(
                "deepspeed.runtime.fp16.fused_optimizer:FP16_Optimizer",
                "fp16_groups fp16_groups_flat fp32_groups_flat refresh_fp32_params",
                "make master weights again",
            ),
            *_each(
                "deepspeed.runtime.fp16.unfused_optimizer:FP16_UnfusedOptimizer",
                "fp16_groups fp32_groups refresh_fp32_params",
                "make master weights again",
            ),
        ),
        "zero3_init": (
            Name(f"{_INIT}._convert_to_zero_parameters", "partition a model on meta", ("param_list",)),
            Name(f"{_INIT}._convert_to_deepspeed_param", "partition a model on meta", ("param",)),
            *_each(_INIT, "partition local_device dtype ds_id", "partition a model on meta"),
        ),
    },
)

_WHOSE = "tell a base model's tensors from an adapter's"
PEFT = Table(
    "peft",
    "0.21.2",
    {
        "": (
            *_each("peft:PeftModel", "base_model peft_config", _WHOSE),
            Name("peft.tuners.tuners_utils:BaseTuner.model", _WHOSE),
            Name("peft.tuners.tuners_utils:BaseTunerLayer.get_base_layer", _WHOSE),
            Name("peft.tuners.lora.layer:LoraLayer.base_layer", _WHOSE),
            Name("peft.tuners.tuners_utils:BaseTunerLayer.merged_adapters", "refuse adapters that are merged"),
            Name("peft.utils.other:AuxiliaryTrainingWrapper.original_module", "tell trained copies from their originals"),
            Name("peft.utils.other:ModulesToSaveWrapper.modules_to_save", "tell trained copies from their originals"),
            Name(
                "peft:get_peft_model_state_dict",
                "know the keys of an adapter's file",
                ("model", "state_dict", "adapter_name"),
            ),
            Name("peft.tuners.lora.dora:()._dora_cache", "drop norms that DoRA computed from old weights"),
        ),
    },
)

ACCELERATE = Table(
    "accelerate",
    "1.15.0",
    {
        "": (
            Name("accelerate.hooks:add_hook_to_module._hf_hook", "notice that accelerate keeps weights elsewhere"),
            *_each(
                "accelerate.hooks:AlignDevicesHook",
                "offload weights_map place_submodules offload_buffers",
                "notice that accelerate keeps weights elsewhere",
            ),
            Name("accelerate.hooks:SequentialHook.hooks", "notice that accelerate keeps weights elsewhere"),
        ),
    },
)

TABLES = {table.library: table for table in (TORCH, TRANSFORMERS, DEEPSPEED, PEFT, ACCELERATE)}
