// Operations of reductions: the built-in ones, and functions of the program. Included by group.hpp.
#ifndef DAYFLY_REDUCTION_HPP
#define DAYFLY_REDUCTION_HPP

#include "group_buffers.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

namespace dayfly {

// Reduction operations. A function of two elements is accepted too: see `commutative`.
enum class operation : std::uint32_t {
    sum = DFLY_SUM,
    product = DFLY_PRODUCT,
    min = DFLY_MIN,
    max = DFLY_MAX,
    logical_and = DFLY_LOGICAL_AND,
    logical_or = DFLY_LOGICAL_OR,
    logical_xor = DFLY_LOGICAL_XOR,
    bit_and = DFLY_BIT_AND,
    bit_or = DFLY_BIT_OR,
    bit_xor = DFLY_BIT_XOR,
    min_at = DFLY_MIN_AT,
    max_at = DFLY_MAX_AT
};

namespace detail {

// A reduction function of the program during its operation, and the exception that it threw.
class reduction_function {
public:
    reduction_function(const reduction_function &) = delete;
    reduction_function &operator=(const reduction_function &) = delete;
    virtual ~reduction_function() {
        if (number_ != 0) {
            dfly_operation_free(number_);
        }
    }

    std::uint32_t number() const noexcept { return number_; }
    void rethrow() {
        if (std::exception_ptr thrown = std::exchange(thrown_, nullptr)) {
            std::rethrow_exception(thrown);
        }
    }

protected:
    reduction_function(dfly_combine combine, bool commutative) {
        check(dfly_operation_create(combine, this, commutative, &number_));
    }

    std::exception_ptr thrown_;

private:
    std::uint32_t number_ = 0;
};

template <typename F> struct commutative_function {
    F function;
};

template <typename F> struct unwrapped {
    static constexpr bool commutes = false;
    static const F &function(const F &operation) { return operation; }
};
template <typename F> struct unwrapped<commutative_function<F>> {
    static constexpr bool commutes = true;
    static const F &function(const commutative_function<F> &operation) { return operation.function; }
};

template <typename T, typename Operation> class function_operation final : public reduction_function {
public:
    explicit function_operation(const Operation &operation)
        : reduction_function(&function_operation::combine, unwrapped<Operation>::commutes), operation_(operation) {}

private:
    // The caller is C code that cannot unwind, so an exception is stored until the collective ends.
    static void combine(void *user, const void *left, void *right, std::size_t count, std::uint32_t) noexcept {
        function_operation &self = *static_cast<function_operation *>(static_cast<reduction_function *>(user));
        const T *from = static_cast<const T *>(left);
        T *into = static_cast<T *>(right);
        try {
            for (std::size_t i = 0; i < count; i++) {
                into[i] = unwrapped<Operation>::function(self.operation_)(from[i], into[i]);
            }
        } catch (...) {
            self.thrown_ = std::current_exception();
        }
    }

    Operation operation_;
};

} // namespace detail

// Wraps a commutative reduction function, which allows a faster order of reduction. A function without this wrapper
// must only be associative.
template <typename F> detail::commutative_function<std::decay_t<F>> commutative(F &&function) {
    return {std::forward<F>(function)};
}

} // namespace dayfly

#endif
