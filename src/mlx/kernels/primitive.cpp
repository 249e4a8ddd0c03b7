// The one primitive through which MLX runs our kernels: it allocates the results, and calls back into Rust on the
// stream's thread. Everything that computes is there.

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/array.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"

namespace {

namespace mx = mlx::core;

constexpr std::size_t kMessage = 512;

extern "C" {

struct mlxgen_input {
  const void* data;
  std::size_t bytes;
};

struct mlxgen_output {
  void* data;
  std::size_t bytes;
};

// What Rust registers with each kernel. Neither function unwinds.
struct mlxgen_kernel_table {
  // Zero, or else a NUL-terminated message of at most `capacity` bytes.
  int (*run)(
      const void* kernel,
      const mlxgen_input* inputs,
      std::size_t input_count,
      const mlxgen_output* outputs,
      std::size_t output_count,
      char* message,
      std::size_t capacity);
  void (*drop)(const void* kernel);
};

struct mlxgen_output_spec {
  const std::int32_t* shape;
  std::size_t rank;
  std::int32_t type;
};

} // extern "C"

// A kernel of Rust's, which gives it up here.
class Kernel {
 public:
  Kernel(const mlxgen_kernel_table& table, const void* kernel)
      : table_(table), kernel_(kernel) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() {
    table_.drop(kernel_);
  }

  void run(
      const std::vector<mlxgen_input>& inputs,
      const std::vector<mlxgen_output>& outputs) const {
    char message[kMessage] = "";
    const int code = table_.run(
        kernel_,
        inputs.data(),
        inputs.size(),
        outputs.data(),
        outputs.size(),
        message,
        sizeof message);
    if (code != 0) {
      throw std::runtime_error(message);
    }
  }

 private:
  mlxgen_kernel_table table_;
  const void* kernel_;
};

mx::Dtype type_of(std::int32_t type) {
  switch (type) {
    case 0:
      return mx::uint8;
    case 1:
      return mx::uint32;
    case 2:
      return mx::float32;
    case 3:
      return mx::float16;
    case 4:
      return mx::bfloat16;
    default:
      throw std::invalid_argument("an element type without a kernel");
  }
}

class Call : public mx::Primitive {
 public:
  Call(
      mx::Stream stream,
      std::shared_ptr<const Kernel> kernel)
      : mx::Primitive(stream), kernel_(std::move(kernel)) {}

  void eval_cpu(
      const std::vector<mx::array>& inputs,
      std::vector<mx::array>& outputs) override {
    std::vector<mlxgen_input> from;
    from.reserve(inputs.size());
    for (const auto& input : inputs) {
      if (input.size() > 1 && !input.flags().row_contiguous) {
        throw std::invalid_argument("a kernel was given an array with gaps");
      }
      from.push_back({input.data<char>(), input.nbytes()});
    }
    std::vector<mlxgen_output> to;
    to.reserve(outputs.size());
    for (auto& output : outputs) {
      output.set_data(mx::allocator::malloc(output.nbytes()));
      to.push_back({output.data<char>(), output.nbytes()});
    }
    auto& encoder = mx::cpu::get_command_encoder(stream());
    encoder.dispatch([kernel = kernel_, from = std::move(from), to = std::move(to)]() {
      kernel->run(from, to);
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&)
      override {
    throw std::runtime_error("the kernels are for the CPU");
  }

  const char* name() const override {
    return "mlxgen";
  }

 private:
  std::shared_ptr<const Kernel> kernel_;
};

void tell(char* message, std::size_t capacity, const char* text) {
  if (capacity > 0) {
    std::strncpy(message, text, capacity - 1);
    message[capacity - 1] = '\0';
  }
}

} // namespace

extern "C" {

// Makes the results of a kernel, not computed yet. Takes the kernel over in any case. `inputs` and `stream` are the
// contexts of mlx-c's handles, `results` receives such. Returns zero, or else a message.
int mlxgen_kernel_apply(
    const mlxgen_kernel_table* table,
    const void* kernel,
    const void* stream,
    const void* const* inputs,
    std::size_t input_count,
    const mlxgen_output_spec* outputs,
    std::size_t output_count,
    void** results,
    char* message,
    std::size_t capacity) {
  std::size_t made = 0;
  try {
    auto owned = std::make_shared<const Kernel>(*table, kernel);
    std::vector<mx::array> arrays;
    arrays.reserve(input_count);
    for (std::size_t index = 0; index < input_count; index++) {
      arrays.push_back(*static_cast<const mx::array*>(inputs[index]));
    }
    std::vector<mx::Shape> shapes;
    std::vector<mx::Dtype> types;
    for (std::size_t index = 0; index < output_count; index++) {
      const auto& spec = outputs[index];
      shapes.emplace_back(spec.shape, spec.shape + spec.rank);
      types.push_back(type_of(spec.type));
    }
    auto primitive = std::make_shared<Call>(
        *static_cast<const mx::Stream*>(stream),
        std::move(owned));
    auto made_arrays =
        mx::array::make_arrays(std::move(shapes), types, primitive, arrays);
    for (; made < output_count; made++) {
      results[made] = new mx::array(std::move(made_arrays[made]));
    }
    return 0;
  } catch (const std::exception& error) {
    tell(message, capacity, error.what());
  } catch (...) {
    tell(message, capacity, "an unknown failure");
  }
  while (made > 0) {
    delete static_cast<mx::array*>(results[--made]);
  }
  return 1;
}

} // extern "C"
