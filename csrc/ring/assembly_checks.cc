// Checks of an assembly's producers, leaves and options.
#include <stdexcept>
#include <string>

#include "ring/assembly.h"

namespace jaxkern::ring {
namespace {

constexpr auto text = [](auto value) { return std::to_string(value); };

}  // namespace

Producer::Producer(const JaxkernProducer& abi) {
  if (abi.version != JAXKERN_PRODUCER_VERSION || abi.size < sizeof(JaxkernProducer)) {
    throw std::invalid_argument(
        "the producer has ABI version " + text(abi.version) + " and size " + text(abi.size) +
        "; expected version " + text(JAXKERN_PRODUCER_VERSION) + " and at least " +
        text(sizeof(JaxkernProducer)) + ": build it with this jaxkern's core/producer.h");
  }
  bool sound = abi.retain != nullptr && abi.release != nullptr && abi.run != nullptr &&
               abi.row_bytes >= 0 && abi.output_bytes >= 0 && abi.operands >= 0 &&
               (abi.operands == 0 || abi.operand_bytes != nullptr);
  for (int64_t i = 0; sound && i < abi.operands; ++i) sound = abi.operand_bytes[i] >= 0;
  if (!sound) throw std::invalid_argument("the producer lacks a function or has a negative size");
  abi.retain(abi.state);
  state_ = std::shared_ptr<const JaxkernProducer>(new JaxkernProducer(abi),
                                                  [](const JaxkernProducer* last) {
                                                    last->release(last->state);
                                                    delete last;
                                                  });
}

void check_assembly(const Ring* ring, const std::vector<AssemblyLeaf>& leaves,
                    const AssemblyOptions& options) {
  if (ring == nullptr) throw std::invalid_argument("the ring is closed or does not exist");
  const std::vector<LeafSpec>& specs = ring->leaves();
  if (options.batch < 1 || options.workers < 1 || options.workers > 1024 || options.start < 0) {
    throw std::invalid_argument(
        "an assembly of " + text(options.workers) + " workers, batches of " + text(options.batch) +
        " and start " + text(options.start) +
        "; expected 1 to 1024 workers, a batch of at least 1 and a start of "
        "at least 0");
  }
  const size_t flags = (options.mask ? 1 : 0) + (options.valid ? 1 : 0);
  if (leaves.empty() || leaves.size() + flags != specs.size()) {
    throw std::invalid_argument("the ring has " + text(specs.size()) + " leaves, but there are " +
                                text(leaves.size()) +
                                " arrays; expected one array per leaf, and at least one");
  }
  for (size_t i = leaves.size(); i < specs.size(); ++i) {
    if (specs[i].bytes != options.batch) {
      throw std::invalid_argument("the mask leaf has " + text(specs[i].bytes) +
                                  " bytes; expected one per record: " + text(options.batch));
    }
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Rows& rows = leaves[i].rows;
    const std::string name = "array " + text(i);
    if (rows.count != leaves[0].rows.count || rows.count < 0 || rows.bytes < 0 ||
        static_cast<int32_t>(rows.cast) < 0 || static_cast<int32_t>(rows.cast) >= kCasts ||
        (rows.base == nullptr && rows.count > 0 && rows.bytes > 0)) {
      throw std::invalid_argument(name + " has " + text(rows.count) + " rows of " +
                                  text(rows.bytes) + " bytes; expected " +
                                  text(leaves[0].rows.count) + " rows, as in array 0");
    }
    int64_t before = 0;
    for (const RowBlock& block : rows.more) {
      if (block.first < before || block.first > rows.count ||
          (block.base == nullptr && rows.bytes > 0)) {
        throw std::invalid_argument(name + " has a part that begins at row " + text(block.first) +
                                    " of " + text(rows.count) + "; expected ascending parts");
      }
      before = block.first;
    }
    const int64_t record = leaves[i].record_bytes();
    int64_t all = 0;
    if (leaves[i].producer) {
      const JaxkernProducer& abi = leaves[i].producer.abi();
      if (abi.row_bytes != rows.bytes || rows.cast != Cast::kNone) {
        throw std::invalid_argument(name + " has rows of " + text(rows.bytes) +
                                    " bytes; its producer reads " + text(abi.row_bytes));
      }
    }
    if (__builtin_mul_overflow(record, options.batch, &all) || all != specs[i].bytes) {
      throw std::invalid_argument("leaf " + text(i) + " of the ring has " + text(specs[i].bytes) +
                                  " bytes; expected " + text(options.batch) + " records of " +
                                  name + " of " + text(record) + " bytes each");
    }
  }
}

}  // namespace jaxkern::ring
