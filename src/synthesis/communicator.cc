#include "synthesis/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace orrery::synth {
namespace {

struct CommRow {
  std::string_view collective;
  std::int64_t elements = 0;  // of input and output; of the smaller where they differ a share
  std::string_view dtype;
  std::int64_t seq = -1;
  std::int32_t source = -1, target = -1;
  std::int64_t in_share = 1, out_share = 1;
};

std::uint32_t add_comm(const CommContext& context, const Communicator* group, const CommRow& row) {
  Recorder& rec = context.rec;
  CommArgs& c = rec.comm_args();
  c.collective.push_back(rec.text(row.collective));
  c.dtype.push_back(rec.text(row.dtype));
  c.in_elems.push_back(row.elements / row.in_share);
  c.out_elems.push_back(row.elements / row.out_share);
  c.group_size.push_back(group ? group->size() : 1);
  c.group_name.push_back(group ? rec.text(group->info.name) : StrId{});
  c.group_desc.push_back(group && context.group_names ? rec.text(group->info.desc) : StrId{});
  c.group_ranks.push_back(group ? rec.text(fmt::format("[{}]", fmt::join(group->info.ranks, ", "))) : rec.text("[]"));
  c.seq.push_back(row.seq);
  c.src_rank.push_back(row.source);
  c.dst_rank.push_back(row.target);
  c.in_split.push_back(rec.text("[]"));
  c.out_split.push_back(rec.text("[]"));
  return static_cast<std::uint32_t>(c.size() - 1);
}

// The launch inside an nccl: annotation, between NCCL's own record and wait pairs.
void launch_nccl(const CommContext& c, HostThread& t, const Communicator& group, const TaskSpec& task) {
  if (c.nccl_internal) c.rec.wait(t, group.stream, c.rec.record(t, group.internal));
  c.rec.launch(t, group.stream, task, "cudaLaunchKernelExC");
  if (c.nccl_internal) c.rec.wait(t, group.internal, c.rec.record(t, group.stream));
}

Ns vary_transfer(const CommContext& c, const GraphDraft::MeetingKey& key, Ns nominal) {
  Noise noise{mix(c.seed ^ mix(static_cast<std::uint64_t>(key[0]) ^ mix(static_cast<std::uint64_t>(key[1])))), 0};
  return noise.vary(nominal, c.sigma_ppm);
}

}  // namespace

// As PyTorch and NCCL name them.
struct CollectiveNames {
  std::string_view op, collective, range, kernel;
};
CollectiveNames old_names_of(Collective kind, Dtype dtype);
CollectiveNames names_of(Collective kind, Dtype dtype, bool old) {
  if (old) return old_names_of(kind, dtype);
  switch (kind) {
    case Collective::reduce_scatter:
      return {"c10d::_reduce_scatter_base_", "_reduce_scatter_base", "nccl:_reduce_scatter_base",
              "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"};
    case Collective::all_gather:
      return {"c10d::_allgather_base_", "_allgather_base", "nccl:_all_gather_base",
              "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"};
    case Collective::broadcast:
      return {"c10d::broadcast_", "broadcast", "nccl:broadcast",
              "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"};
    case Collective::barrier:
      return {"c10d::barrier", "allreduce", "nccl:all_reduce_barrier",
              "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"};
    case Collective::all_to_all:
      return {"c10d::alltoall_base_", "all_to_allv", "nccl:all_to_all",
              "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"};
    case Collective::all_reduce:
      break;
  }
  return {"c10d::allreduce_", "allreduce", "nccl:all_reduce",
          dtype == Dtype::bf16 ? "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                               : "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"};
}

CollectiveNames old_names_of(Collective kind, Dtype dtype) {
  CollectiveNames n = names_of(kind, dtype, false);
  switch (kind) {
    case Collective::reduce_scatter:
      n.kernel = "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)";
      break;
    case Collective::all_gather:
      n.kernel = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)";
      break;
    case Collective::broadcast:
      n.kernel = "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)";
      break;
    case Collective::all_to_all:
      n.kernel = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)";
      break;
    case Collective::barrier:
    case Collective::all_reduce:
      n.kernel = dtype == Dtype::bf16
                     ? "ncclKernel_AllReduce_RING_LL_Sum_bf16(ncclDevComm*, unsigned long, ncclWork*)"
                     : "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)";
      break;
  }
  return n;
}
std::string_view send_receive_name(bool old) {
  return old ? "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
             : "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)";
}

Event collective(const CommContext& c, HostThread& t, Communicator& group, Collective kind, std::int64_t elements,
                 Dtype dtype, const Given* given) {
  Recorder& rec = c.rec;
  const CollectiveNames names = names_of(kind, dtype, c.old_nccl);
  const std::string dims = fmt::format("[[{}]]", elements);
  const std::string_view types = dtype == Dtype::bf16  ? "[\"c10::BFloat16\"]"
                                 : dtype == Dtype::f32 ? "[\"float\"]"
                                                       : "[\"long int\"]";
  const OpId op = rec.open(t, OpKind::cpu_op, names.op, kOpLead);
  rec.set_shapes(op, dims, types);
  const OpId params = rec.open(t, OpKind::cpu_op, "record_param_comms", 5'200);
  CommRow row{names.collective, elements,
              dtype == Dtype::bf16  ? "BFloat16"
              : dtype == Dtype::f32 ? "Float"
                                    : "Long",
              ++group.calls};
  if (kind == Collective::reduce_scatter) row.out_share = group.size();
  if (kind == Collective::all_gather) row.in_share = group.size();
  const std::uint32_t comm = add_comm(c, &group, row);
  rec.set_comm(params, comm);
  rec.set_shapes(params, dims, types);
  if (given == nullptr || given->after == nullptr)
    rec.wait(t, group.stream, rec.record(t, c.compute));
  else if (!given->after->tasks.empty())
    rec.wait(t, group.stream, *given->after);

  const OpId range = rec.open(t, OpKind::user_annotation, names.range, 1'100);
  rec.set_shapes(range, dims, types);
  TaskSpec task;
  task.name = names.kernel;
  task.meets = true;
  task.key = {group.id, group.calls};
  // half of what an all-reduce sends
  const bool reduces = kind == Collective::all_reduce || kind == Collective::barrier;
  const std::int64_t bytes = elements * size_of(dtype) / (reduces ? 1 : 2);
  const Ns nominal = kind == Collective::all_to_all
                         ? all_to_all_time(c.gpu, elements * size_of(dtype), group.size(), group.in_server)
                         : all_reduce_time(c.gpu, bytes, group.size(), group.one_node, group.rails);
  task.duration = given != nullptr ? given->duration : vary_transfer(c, task.key, nominal);
  task.blocks = static_cast<std::uint32_t>(std::clamp<std::int64_t>(elements / 65'536, 1, 24));
  task.threads = 544;
  task.registers = 96;
  task.comm = comm;
  task.group = group.info.desc;
  launch_nccl(c, t, group, task);
  rec.close(t, kOpTail);
  const Event done = rec.record(t, group.stream);
  rec.close(t, 6'500);
  rec.close(t, kOpTail);
  return done;
}

void wait_for_result(const CommContext& c, HostThread& t, const Event& done) {
  const OpId op = c.rec.open(t, OpKind::cpu_op, "record_param_comms", 4'500);
  c.rec.set_comm(op, add_comm(c, nullptr, {"wait", 0, "Byte", -1, -1, -1}));
  c.rec.wait(t, c.compute, done);
  c.rec.close(t, kOpTail);
}

bool on_one_node(const CommContext& c, const Communicator& group, const Exchange& x) {
  return c.own_node < 0 ? group.one_node : x.peer / c.gpus_per_node == c.own_node;
}
Ns exchange_time(const CommContext& c, const Communicator& group, const Exchange& x) {
  if (x.duration > 0) return x.duration;
  return vary_transfer(c, x.key, send_receive_time(c.gpu, x.elements * size_of(Dtype::bf16), on_one_node(c, group, x)));
}

Event send_receive(const CommContext& c, HostThread& t, Communicator& group, const Exchange& x) {
  Recorder& rec = c.rec;
  const std::string dims = fmt::format("[[{}]]", x.elements);
  const std::string_view types = "[\"c10::BFloat16\"]";
  const auto one_way = [&](std::string_view op_name, CommRow row) {
    const OpId op = rec.open(t, OpKind::cpu_op, op_name, 8'000);
    rec.set_shapes(op, dims, types);
    const OpId params = rec.open(t, OpKind::cpu_op, "record_param_comms", 4'200);
    row.elements = x.elements;
    row.dtype = "BFloat16";
    row.seq = ++group.p2p_calls;
    rec.set_comm(params, add_comm(c, &group, row));
    rec.set_shapes(params, dims, types);
    rec.close(t, 4'000);
    rec.close(t, kOpTail);
  };
  const auto peer = static_cast<std::int32_t>(x.peer);
  if (x.send) one_way("c10d::send", {"send", 0, {}, -1, -1, peer});
  if (x.receive) one_way("c10d::recv_", {"recv", 0, {}, -1, peer, -1});

  // The end of coalescing: the launch carries neither the operators' ids nor their arguments.
  rec.wait(t, group.stream, rec.record(t, c.compute));
  rec.open(t, OpKind::user_annotation, "nccl:coalesced", 1'100);
  TaskSpec task;
  task.name = send_receive_name(c.old_nccl);
  task.meets = true;
  task.key = x.key;
  task.duration = exchange_time(c, group, x);
  task.blocks = 4;
  task.threads = 544;
  task.registers = 96;
  task.group = group.info.desc;
  launch_nccl(c, t, group, task);
  rec.close(t, kOpTail);
  return rec.record(t, group.stream);
}

Event send_or_receive(const CommContext& c, HostThread& t, Communicator& group, const Exchange& x) {
  Recorder& rec = c.rec;
  const std::string dims = fmt::format("[[{}]]", x.elements);
  const std::string_view types = "[\"c10::BFloat16\"]";
  const OpId op = rec.open(t, OpKind::cpu_op, x.send ? "c10d::send" : "c10d::recv_", 8'000);
  rec.set_shapes(op, dims, types);
  const OpId params = rec.open(t, OpKind::cpu_op, "record_param_comms", 4'200);
  const auto peer = static_cast<std::int32_t>(x.peer);
  const std::uint32_t comm = add_comm(
      c, &group,
      {x.send ? "send" : "recv", x.elements, "BFloat16", ++group.p2p_calls, x.send ? -1 : peer, x.send ? peer : -1});
  rec.set_comm(params, comm);
  rec.set_shapes(params, dims, types);
  rec.wait(t, group.stream, rec.record(t, c.compute));
  rec.open(t, OpKind::user_annotation, x.send ? "nccl:send" : "nccl:recv", 1'100);
  TaskSpec task;
  task.name = send_receive_name(c.old_nccl);
  task.meets = true;
  task.key = x.key;
  task.duration = exchange_time(c, group, x);
  task.blocks = 4;
  task.threads = 544;
  task.registers = 96;
  task.comm = comm;
  task.group = group.info.desc;
  launch_nccl(c, t, group, task);
  rec.close(t, kOpTail);
  const Event done = rec.record(t, group.stream);
  rec.close(t, 4'000);
  rec.close(t, kOpTail);
  return done;
}

}  // namespace orrery::synth
