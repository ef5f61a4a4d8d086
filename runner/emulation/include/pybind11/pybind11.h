// The part of pybind11 that hands FFI registrations over, without Python: dictionaries of capsules.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace pybind11 {

class dict;

class capsule {
 public:
  capsule(void *pointer, const char *name) : pointer_(pointer), name_(name) {}
  void *get_pointer() const { return pointer_; }
  const char *name() const { return name_; }

 private:
  void *pointer_;
  const char *name_;
};

// A capsule or a dictionary of them; what `registrations()` maps a target's name to.
class object {
 public:
  object() = default;
  object(capsule value) : capsule_(std::make_shared<capsule>(std::move(value))) {}
  inline object(dict value);
  const capsule *as_capsule() const { return capsule_.get(); }
  const dict *as_dict() const { return dict_.get(); }

 private:
  std::shared_ptr<capsule> capsule_;
  std::shared_ptr<dict> dict_;
};

struct arg_v {
  std::string name;
  object value;
};

struct arg {
  explicit arg(const char *keyword) : name(keyword) {}
  template <typename T>
  arg_v operator=(T value) const {
    return arg_v{name, object(std::move(value))};
  }
  std::string name;
};

class dict {
 public:
  template <typename... Items>
  explicit dict(Items... items) {
    (void)std::initializer_list<int>{(items_.emplace(items.name, items.value), 0)...};
  }
  object &operator[](const std::string &key) { return items_[key]; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::map<std::string, object> items_;
};

object::object(dict value) : dict_(std::make_shared<dict>(std::move(value))) {}

class module_ {
 public:
  void def(const char *name, dict (*function)()) { functions_[name] = function; }
  dict call(const std::string &name) const { return functions_.at(name)(); }

 private:
  std::map<std::string, dict (*)()> functions_;
};

}  // namespace pybind11

// Importing the extension runs the module's body; the emulated process imports it at most once.
#define PYBIND11_MODULE(extension, variable)                                      \
  static void extension##_module_body(::pybind11::module_ &variable);             \
  extern "C" void emulation_import_extension(::pybind11::module_ *module) {       \
    extension##_module_body(*module);                                             \
  }                                                                               \
  static void extension##_module_body(::pybind11::module_ &variable)
