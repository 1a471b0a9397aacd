#include "importers/kineto_fields.h"

namespace orrery {
namespace {

// Names of older versions, and of AMD and other devices, stand beside today's.
constexpr FieldKey kEventKeys[] = {
    {"ph", Field::ph}, {"cat", Field::cat}, {"name", Field::name}, {"pid", Field::pid},   {"tid", Field::tid},
    {"ts", Field::ts}, {"dur", Field::dur}, {"id", Field::id},     {"args", Field::args},
};

constexpr FieldKey kArgKeys[] = {
    {"correlation", Field::correlation},
    {"External id", Field::external_id},
    {"external id", Field::external_id},
    {"stream", Field::stream},
    {"device", Field::device},
    {"Sequence number", Field::sequence},
    {"Fwd thread id", Field::fwd_thread},
    {"Input Dims", Field::input_dims},
    {"Input dims", Field::input_dims},
    {"Input type", Field::input_types},
    {"Input Types", Field::input_types},
    {"Concrete Inputs", Field::concrete_inputs},
    {"Python id", Field::python_id},
    {"Python parent id", Field::python_parent},
    {"grid", Field::grid},
    {"block", Field::block},
    {"shared memory", Field::shared_memory},
    {"registers per thread", Field::registers},
    {"est. achieved occupancy %", Field::occupancy},
    {"blocks per SM", Field::blocks_per_sm},
    {"bytes", Field::bytes},
    {"Collective name", Field::collective},
    {"dtype", Field::dtype},
    {"In msg nelems", Field::in_elems},
    {"In msg size", Field::in_elems},
    {"Out msg nelems", Field::out_elems},
    {"Out msg size", Field::out_elems},
    {"Group size", Field::group_size},
    {"Process Group Name", Field::group_name},
    {"Process Group Description", Field::group_desc},
    {"Process Group Ranks", Field::group_ranks},
    {"Seq", Field::seq},
    {"Src Rank", Field::src_rank},
    {"Dst Rank", Field::dst_rank},
    {"In split size", Field::in_split},
    {"Out split size", Field::out_split},
    {"cuda_sync_kind", Field::sync_kind},
    {"wait_on_stream", Field::wait_stream},
    {"wait_on_cuda_event_record_corr_id", Field::wait_record_corr},
    {"wait_on_cuda_event_id", Field::wait_event},
    {"Bytes", Field::memory_bytes},
    {"Total Allocated", Field::total_allocated},
    {"Total Reserved", Field::total_reserved},
    {"Device Type", Field::device_type},
    {"Device Id", Field::device_id},
    {"name", Field::name_arg},
    {"rank", Field::rank},  // of tools that fuse the traces of several ranks
};

struct CategoryName {
  std::string_view name;
  Category category;
};
constexpr Category op(OpKind k) { return {CategoryKind::op, k, FlowKind::other}; }
constexpr Category flow(FlowKind k) { return {CategoryKind::flow, OpKind::other, k}; }

constexpr CategoryName kCategories[] = {
    {"cpu_op", op(OpKind::cpu_op)},
    {"Operator", op(OpKind::cpu_op)},
    {"operator", op(OpKind::cpu_op)},
    {"kernel", op(OpKind::kernel)},
    {"Kernel", op(OpKind::kernel)},
    {"cuda_runtime", op(OpKind::runtime)},
    {"cuda_driver", op(OpKind::runtime)},
    {"Runtime", op(OpKind::runtime)},
    {"runtime", op(OpKind::runtime)},
    {"hip_runtime", op(OpKind::runtime)},
    {"hip_driver", op(OpKind::runtime)},
    {"hip_api", op(OpKind::runtime)},
    {"xpu_runtime", op(OpKind::runtime)},
    {"xpu_driver", op(OpKind::runtime)},
    {"mtia_runtime", op(OpKind::runtime)},
    {"privateuse1_runtime", op(OpKind::runtime)},
    {"privateuse1_driver", op(OpKind::runtime)},
    {"python_function", op(OpKind::python)},
    {"PythonFunction", op(OpKind::python)},
    {"user_annotation", op(OpKind::user_annotation)},
    {"gpu_user_annotation", op(OpKind::gpu_annotation)},
    {"gpu_memcpy", op(OpKind::memcpy)},
    {"Memcpy", op(OpKind::memcpy)},
    {"memcpy", op(OpKind::memcpy)},
    {"gpu_memset", op(OpKind::memset)},
    {"Memset", op(OpKind::memset)},
    {"memset", op(OpKind::memset)},
    {"cuda_sync", op(OpKind::sync)},
    {"hip_sync", op(OpKind::sync)},
    {"xpu_sync", op(OpKind::sync)},
    {"overhead", op(OpKind::overhead)},
    {"cuda_profiler_range", op(OpKind::other)},
    {"Trace", op(OpKind::other)},
    {"cpu_instant_event", {CategoryKind::memory, OpKind::other, FlowKind::other}},
    {"ac2g", flow(FlowKind::ac2g)},
    {"async_gpu", flow(FlowKind::ac2g)},
    {"async_cpu_to_gpu", flow(FlowKind::ac2g)},
    {"async", flow(FlowKind::ac2g)},
    {"fwdbwd", flow(FlowKind::fwdbwd)},
    {"forward_backward", flow(FlowKind::fwdbwd)},
};

}  // namespace

constexpr FieldTable kEventTable(kEventKeys, Field::none);
constexpr FieldTable kArgTable(kArgKeys, Field::none);
const FieldTable kEventFields = kEventTable;
const FieldTable kArgFields = kArgTable;

std::string_view key_of(Field field) {
  for (const FieldKey& k : kEventKeys)
    if (k.field == field) return k.key;
  for (const FieldKey& k : kArgKeys)
    if (k.field == field) return k.key;
  return {};
}

Category category_of(std::string_view cat) {
  static constexpr WordTable<Category, 128> kTable(kCategories, Category{});
  return kTable.find(cat);
}

}  // namespace orrery
