// `lading verify`
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "lading/verify.h"

namespace lading::cli {

struct VerifyArguments {
  VerifyRequest request;
  bool json = false;
};

CLI::App* add_verify(CLI::App& app, VerifyArguments& arguments);
int run_verify(const VerifyArguments& arguments, Output& output);

}  // namespace lading::cli
