// `lading verify`
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "lading/verify.h"

namespace lading::cli {

struct VerifyArguments {
  VerifyRequest request;  ///< but for its ledgers
  std::vector<std::string> adapters;
  std::string ledger;  ///< or a directory of one load's ledgers
  bool json = false;
};

CLI::App* add_verify(CLI::App& app, VerifyArguments& arguments);
Exit run_verify(const VerifyArguments& arguments, Output& output);

}  // namespace lading::cli
