#include "manual/pages.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>

namespace lading::manual {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// As GitHub and MkDocs make anchors of headings.
std::string anchor_of(std::string_view heading) {
  std::string anchor = lower_case(heading);
  std::erase(anchor, ',');
  std::replace(anchor.begin(), anchor.end(), ' ', '-');
  return anchor;
}

// "[formats.md](formats.md#other-formats)" becomes "formats.md". No other Markdown is in these pages, but code in
// backticks, which stays.
std::string without_links(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t middle = text.find("](");
    const std::size_t begin = middle == std::string_view::npos ? middle : text.rfind('[', middle);
    const std::size_t end = middle == std::string_view::npos ? middle : text.find(')', middle);
    if (begin == std::string_view::npos || end == std::string_view::npos) break;
    out += text.substr(0, begin);
    out += text.substr(begin + 1, middle - begin - 1);
    text.remove_prefix(end + 1);
  }
  return out.append(text);
}

// "**What to do:** Nothing." in its two halves.
std::optional<HelpPart> labelled(std::string_view paragraph) {
  const std::size_t end = paragraph.find(":** ");
  if (!paragraph.starts_with("**") || end == std::string_view::npos) return std::nullopt;
  return HelpPart{std::string(paragraph.substr(2, end - 2)), without_links(paragraph.substr(end + 4))};
}

class PageReader {
 public:
  explicit PageReader(const Page& page) : page_(page) {}

  std::vector<HelpTopic> run() {
    std::string_view rest = page_.text;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      line(rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    end_topic();
    return std::move(topics_);
  }

 private:
  void line(std::string_view text) {
    if (text.starts_with("#")) {
      end_topic();
      heading(text);
    } else if (text.empty()) {
      end_paragraph();
    } else if (topic_) {
      paragraph_ += paragraph_.empty() ? "" : " ";
      paragraph_ += text;
    }
  }

  void heading(std::string_view text) {
    if (text.starts_with("## ")) group_ = text.substr(3);
    if (!text.starts_with("### ")) return;
    heading_ = text.substr(4);
    topic_ = HelpTopic();
    topic_->kind = page_.kind;
    topic_->group = group_;
    topic_->page = std::string(page_.file) + "#" + anchor_of(heading_);
  }

  void end_paragraph() {
    if (!paragraph_.empty()) {
      if (auto part = labelled(paragraph_)) {
        topic_->parts.push_back(*std::move(part));
      } else if (!paragraph_.starts_with("[Tests of ")) {
        topic_->meaning += topic_->meaning.empty() ? "" : " ";
        topic_->meaning += without_links(paragraph_);
      }
    }
    paragraph_.clear();
  }

  void end_topic() {
    end_paragraph();
    if (!topic_) return;
    const bool is_exit = page_.kind == TopicKind::kExitCode;
    std::string_view names = heading_;
    while (!names.empty()) {
      const std::size_t end = std::min(names.find(", "), names.size());
      topic_->name = is_exit ? lower_case(names.substr(0, end)) : std::string(names.substr(0, end));
      topics_.push_back(*topic_);
      names.remove_prefix(std::min(end + 2, names.size()));
    }
    topic_.reset();
  }

  const Page& page_;
  std::string group_;
  std::string heading_;
  std::string paragraph_;
  std::optional<HelpTopic> topic_;
  std::vector<HelpTopic> topics_;
};

}  // namespace

std::vector<HelpTopic> read_page(const Page& page) { return PageReader(page).run(); }

}  // namespace lading::manual
