#include "api/values_file.h"

#include <cstddef>
#include <map>
#include <vector>

#include "source/checkpoint_source.h"

namespace lading {
namespace {

class OpenValues : public ValuesFile {
 public:
  explicit OpenValues(source::CheckpointSource source) : source_(std::move(source)) {}

  Result<HostTensor> of(const std::string& name) override {
    const checkpoint::CatalogTensor* const tensor = source_.catalog().find(name);
    if (tensor == nullptr || !tensor->dtype) {
      return fail(Error(Code::kPlan, "the values file of the skeleton does not have the tensor")
                      .of_tensor(name)
                      .in_file(source_.catalog().files.front().name)
                      .by_rule("R6")
                      .try_this("Write both files again with lading skeleton MODEL -o FILE."));
    }
    auto found = values_.find(name);
    if (found == values_.end()) {
      LADING_ASSIGN_OR_RETURN(const io::File file, source_.open_file(source_.shards()[tensor->file]));
      std::vector<std::byte> bytes(tensor->bytes.end - tensor->bytes.begin);
      LADING_TRY(file.read_exact(tensor->bytes.begin, {reinterpret_cast<char*>(bytes.data()), bytes.size()}));
      found = values_.emplace(name, std::move(bytes)).first;
    }
    return HostTensor{found->second, *tensor->dtype, tensor->shape};
  }

 private:
  source::CheckpointSource source_;
  std::map<std::string, std::vector<std::byte>> values_;
};

}  // namespace

Result<std::shared_ptr<ValuesFile>, Errors> ValuesFile::open(const std::string& path) {
  auto source = source::CheckpointSource::open(path, {});
  if (!source) return fail(std::move(source).error());
  return std::shared_ptr<ValuesFile>(std::make_shared<OpenValues>(*std::move(source)));
}

}  // namespace lading
