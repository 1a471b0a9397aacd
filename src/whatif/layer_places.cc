// Which linear layer of a transformer each one is, by its order between attentions and by shapes where they are there.
#include <algorithm>
#include <utility>

#include "whatif/operators.h"

namespace orrery {
namespace {

// The linear layers between two attentions: proj, fc1 (gate and up apart: two) and fc2 unless experts are all there is,
// then possibly the head and another micro-batch, then q, k and v in one to three. Counts of each that fit the shapes;
// `known` breaks ties.
struct Counts {
  int fc1 = -1, head = 0, qkv = 0;  // fc1 -1: not told; 0: nor an fc2
  bool told() const { return fc1 >= 0; }
  int mlp() const { return fc1 > 0 ? fc1 + 1 : 0; }
  bool operator==(const Counts&) const = default;
};

bool shaped(const Anchor& a) { return a.in > 0 && a.out > 0; }

bool fits(const std::vector<Anchor*>& s, const Counts& c, bool loss_seen) {
  if (s.size() != static_cast<std::size_t>(1 + c.mlp() + c.head + c.qkv)) return false;
  // The head is the one at the loss, where a loss was seen at all.
  const auto at = static_cast<std::size_t>(1 + c.mlp());
  if (loss_seen) {
    for (std::size_t i = 0; i < s.size(); ++i)
      if (s[i]->at_loss != (c.head == 1 && i == at)) return false;
  }
  if (!std::all_of(s.begin(), s.end(), [](const Anchor* a) { return shaped(*a); })) return true;
  const std::int64_t h = s[0]->out;
  std::size_t i = 1;
  if (c.fc1 > 0) {
    const std::int64_t up = s[1]->out;
    for (int n = 0; n < c.fc1; ++n, ++i)
      if (s[i]->in != h || s[i]->out != up) return false;
    const Anchor& down = *s[i++];
    if (down.out != h || (down.in != up && (c.fc1 == 2 || down.in * 2 != up))) return false;
  }
  for (; i < s.size(); ++i)
    if (s[i]->in != h) return false;
  return true;
}

void give(const std::vector<Anchor*>& s, const Counts& c) {
  for (std::size_t i = 0; i < s.size(); ++i) {
    const int n = static_cast<int>(i) - 1;
    Place p = Place::proj;
    const int after = n - c.mlp();  // of what follows the MLP
    if (n >= 0) p = n < c.fc1 ? Place::fc1 : after < 0 ? Place::fc2 : after < c.head ? Place::head : Place::qkv;
    if (p == Place::qkv && c.qkv > 1) p = after == c.head ? Place::q : Place::kv;
    s[i]->place = p;
  }
}

// Of a layer's linear layers those of its experts, between the all-to-alls that send tokens and bring them back, and
// the router ahead of them; the others are left. `s` is in forward order.
std::vector<Anchor*> take_experts(const std::vector<Anchor*>& s) {
  // sent once and brought back once by a layer
  const auto sent = [&](const Anchor& a) { return (a.all_to_alls - s.front()->all_to_alls) % 2 != 0; };
  std::vector<Anchor*> rest;
  std::size_t first = s.size();
  for (std::size_t i = s.size(); i-- > 0;)
    if (s[i]->grouped || sent(*s[i])) first = i;
  if (first == s.size()) return s;
  bool in = true;
  for (std::size_t i = 0; i < s.size(); ++i) {
    Anchor& a = *s[i];
    const bool inside = a.grouped || sent(a);
    if (inside) {
      // unshaped: they take turns
      const std::int64_t h = s.front()->out;
      a.place = shaped(a) && h > 0 && a.in != a.out ? (a.in == h ? Place::expert_in : Place::expert_out)
                : in                                ? Place::expert_in
                                                    : Place::expert_out;
      in = !in;
      continue;
    }
    const bool narrow =
        shaped(a) && a.out < a.in / 2 && i > 0 && i < first &&
        (i + 1 == s.size() || !shaped(*s[i + 1]) || (s[i + 1]->in != a.out && s[i + 1]->in * 2 != a.out));
    if (i > 0 && (a.named_router || narrow)) {
      a.place = Place::router;
      continue;
    }
    rest.push_back(&a);
  }
  return rest;
}

// `list` is in forward order: of a backward pass, from its end.
bool place_list(const std::vector<Anchor*>& list) {
  std::vector<std::vector<Anchor*>> between(1);
  for (Anchor* a : list) {
    if (!a->attention) {
      between.back().push_back(a);
    } else {
      a->place = Place::attention;
      if (!between.back().empty() || between.size() == 1) between.emplace_back();
    }
  }
  if (between.size() < 2) return false;
  bool experts = false;
  for (std::size_t i = 1; i < between.size(); ++i) {
    std::vector<Anchor*> rest = take_experts(between[i]);
    experts = experts || rest.size() < between[i].size();
    between[i] = std::move(rest);
  }
  // Before the first attention: q, k and v, unless the trace begins elsewhere.
  const std::vector<Anchor*>& head = between.front();
  int qkv = head.size() <= 3 ? static_cast<int>(head.size()) : 0;
  const bool loss_seen =
      std::any_of(list.begin(), list.end(), [](const Anchor* a) { return a->at_loss && !a->attention; });
  std::vector<std::pair<Counts, std::uint64_t>> votes;
  auto options = [&](const std::vector<Anchor*>& s, bool last, auto&& visit) {
    for (const int hd : {0, 1})
      for (const int q : {1, 2, 3, 0})
        for (const int f : {1, 2, 0})
          if ((f > 0 || experts) && last == (q == 0) && fits(s, {f, hd, q}, loss_seen)) visit(Counts{f, hd, q});
  };
  for (std::size_t i = 1; i + 1 < between.size(); ++i) {
    options(between[i], false, [&](const Counts& c) {
      auto it = std::find_if(votes.begin(), votes.end(), [&](const auto& v) { return v.first == c; });
      if (it == votes.end()) it = votes.insert(votes.end(), {c, 0});
      // as many as before the first attention, and no head inside of a stage, are likelier
      it->second += 4 + (c.qkv == qkv ? 4u : 0u) + (c.head == 0 ? 1u : 0u);
    });
  }
  Counts best;
  std::uint64_t most = 0;
  for (const auto& [c, n] : votes)
    if (n > most) best = c, most = n;
  if (most == 0) {
    // one layer between the ends: only the last segment tells
    options(between.back(), true, [&](const Counts& c) {
      if (!best.told()) best = c;
    });
    best.qkv = qkv;
  }
  if (most > 0 || qkv == 0) qkv = best.qkv;  // a trace may begin within a layer
  auto close = [&](const Counts& c) {
    return (c.fc1 == best.fc1) * 2 + (c.qkv == best.qkv || c.qkv == 0) * 2 - c.head;
  };
  for (std::size_t i = 1; i < between.size(); ++i) {
    const bool last = i + 1 == between.size();
    Counts chosen;
    int score = -100;
    options(between[i], last, [&](const Counts& c) {
      if (close(c) > score) chosen = c, score = close(c);
    });
    // a trace that ends within a layer
    if (!chosen.told() && last && between[i].size() < static_cast<std::size_t>(1 + best.mlp())) chosen = best;
    if (!chosen.told() && last && best.told()) {
      options(between[i], false, [&](const Counts& c) {
        if (close(c) > score) chosen = c, score = close(c);
      });
    }
    if (chosen.told()) give(between[i], chosen);
  }
  const std::size_t from = head.size() - std::min(head.size(), static_cast<std::size_t>(qkv));
  for (std::size_t i = from; i < head.size(); ++i)
    head[i]->place = qkv <= 1 ? Place::qkv : i == from ? Place::q : Place::kv;
  return experts;
}

}  // namespace

void place_anchors(Operators& o) {
  for (std::uint32_t lane = 0; lane < o.trace->lanes.size(); ++lane) {
    for (const bool backward : {false, true}) {
      std::vector<Anchor*> list;
      for (Anchor& a : o.anchors)
        if (raw(a.lane) == lane && a.backward == backward) list.push_back(&a);
      if (backward) std::reverse(list.begin(), list.end());
      if (!list.empty()) o.experts = place_list(list) || o.experts;
    }
  }
  // The forward pass knows best: its order is the program's.
  for (Anchor& a : o.anchors) {
    if (!a.backward || a.attention) continue;
    const std::uint32_t f = o.forward_launch(a.op, o.launches[a.first_launch].at);
    if (f == kNone || o.launches[f].anchor == kNone) continue;
    const Anchor& forward = o.anchors[o.launches[f].anchor];
    if (forward.attention) continue;
    if (shaped(a) && shaped(forward) && (a.in != forward.in || a.out != forward.out)) continue;
    if (forward.place != Place::none) a.place = forward.place;
    if (!shaped(a)) a.in = forward.in, a.out = forward.out;
    if (a.experts == 0) a.experts = forward.experts;
  }
}

}  // namespace orrery
