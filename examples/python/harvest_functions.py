"""Ten functions whose demand for cores and memory differs between calls, for examples and measurements of harvesting.

They follow the applications of the benchmark suite SeBS (Copik and others, Middleware 2021) and are written for this
project. `crates/simulate/measure.py` measures them. One subject: each function is short and stands alone.

Five functions are related to their input's size: `dynamic_html`, `thumbnail`, `compress`, `visualise_dna`, `upload`.
For the other five, the content decides and the stated number means nothing: `encode_video`, `recognise`, `pagerank`,
`spanning_tree`, `breadth_first`. `FUNCTIONS` lists all, `arguments(name, size, seed)` makes the arguments of a call.

A function starts as many threads or processes as its input has pieces of work, at most `MAX_WIDTH`. Threads help where
the library releases Python's global lock (compression, Pillow, NumPy on large arrays); `dynamic_html` is pure Python
and therefore forks.
"""

import bz2
import hashlib
import io
import itertools
import json
import lzma
import os
import shutil
import socket
import string
import struct
import subprocess
import tempfile
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

# The functions divide their work themselves. Threads of the linear algebra library would come on top.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

#: Threads or processes of one call at most: the largest allocation of a function is eight cores.
MAX_WIDTH = 8

#: Called with a width at the begin of each phase: the threads that run until the next phase. For measurements.
watch = None


def phase(width):
    if watch is not None:
        watch(width)


def width_of(pieces):
    """Returns the threads for a number of pieces of work."""
    return max(1, min(MAX_WIDTH, int(pieces)))


def on_threads(work, pieces, width):
    """Calls `work` for each piece on `width` threads, and returns the results in order."""
    if width == 1:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(width) as threads:
        return list(threads.map(work, pieces))


def in_processes(work, pieces, width):
    """Calls `work` for each piece in `width` forked processes, and returns the results in order.

    A result is anything that JSON represents.
    """
    if width == 1:
        return [work(piece) for piece in pieces]
    children = []
    for number in range(width):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reader)
                with os.fdopen(writer, "w") as pipe:
                    json.dump([work(piece) for piece in pieces[number::width]], pipe)
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        children.append((child, reader))
    results = [None] * len(pieces)
    for number, (child, reader) in enumerate(children):
        with os.fdopen(reader) as pipe:
            text = pipe.read()
        if os.waitpid(child, 0)[1] != 0:
            raise RuntimeError("A process of this call failed.")
        results[number::width] = json.loads(text)
    return results


# Related to the size of the input.

PAGE = string.Template("<html><head><title>$title</title></head><body><table>$rows</table></body></html>")
ROW = string.Template("<tr class='$kind'><td>$number</td><td>$name</td><td>$price</td></tr>")
#: Pages that one process renders in about a second.
PAGES_A_PROCESS = 2_000


def dynamic_html(pages):
    """Renders a number of pages of 120 rows from string templates. Returns the digest of all."""
    phase(1)
    names = [f"item {number * 7919 % 1000}" for number in range(120)]

    def render(number):
        kinds = ("even", "odd")
        rows = "".join(
            ROW.substitute(kind=kinds[row % 2], number=row, name=name, price=f"{(number * 31 + row) % 9973 / 100:.2f}")
            for row, name in enumerate(names)
        )
        return PAGE.substitute(title=f"Page {number}", rows=rows)

    def render_all(numbers):
        digest = hashlib.sha256()
        for number in range(*numbers):
            digest.update(render(number).encode())
        return digest.hexdigest()

    step = 50
    pieces = [(begin, min(begin + step, pages)) for begin in range(0, pages, step)]
    width = width_of(-(-pages // PAGES_A_PROCESS))
    phase(width)
    digests = in_processes(render_all, pieces, width)
    phase(1)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


#: Sides of the thumbnails of a picture, in pixels.
SIDES = (1024, 768, 512, 384, 256, 128)
#: Pictures for which a further thread is worth while.
PICTURES_A_THREAD = 9


def pack(parts):
    """Joins byte strings into one that `unpack` divides again."""
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def unpack(data):
    parts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        parts.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return parts


def thumbnail(album):
    """Makes six thumbnails of each JPEG picture of an album. Returns their bytes together. Needs Pillow."""
    from PIL import Image, ImageFilter

    phase(1)
    pictures = unpack(album)

    def shrink(picture):
        with Image.open(io.BytesIO(picture)) as opened:
            full = opened.convert("RGB")
        small = []
        for side in SIDES:
            copy = full.resize((side, side * full.height // full.width), Image.Resampling.LANCZOS)
            written = io.BytesIO()
            copy.filter(ImageFilter.UnsharpMask(2)).save(written, "JPEG", quality=90)
            small.append(written.getvalue())
        return small

    width = width_of(-(-len(pictures) // PICTURES_A_THREAD))
    phase(width)
    made = on_threads(shrink, pictures, width)
    phase(1)
    return sum(len(small) for thumbnails in made for small in thumbnails)


#: Bytes that are compressed by themselves.
BLOCK = 512 << 10
#: Blocks for which a further thread is worth while.
BLOCKS_A_THREAD = 3


def compress(data):
    """Compresses each block with zlib, bz2 and lzma, and keeps the shortest. Returns the bytes of all blocks."""
    phase(1)
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]

    def shortest(block):
        return min((zlib.compress(block, 9), bz2.compress(block), lzma.compress(block, preset=4)), key=len)

    width = width_of(-(-len(blocks) // BLOCKS_A_THREAD))
    phase(width)
    packed = on_threads(shortest, blocks, width)
    phase(1)
    return len(pack(packed))


#: Pixels of a side of the picture of a sequence.
CANVAS = 1024


def visualise_dna(sequence):
    """Draws a sequence of A, C, G and T as two-dimensional walks by four conventions. Returns the painted pixels.

    One thread: each point depends on the one before.
    """
    phase(1)
    bases = np.frombuffer(sequence, dtype=np.uint8)
    conventions = (
        {"A": (0, 1), "C": (0, -1), "G": (1, 0), "T": (-1, 0)},
        {"A": (1, 1), "C": (1, -1), "G": (1, 2), "T": (1, -2)},
        {"A": (-1, 0), "C": (0, 1), "G": (1, 0), "T": (0, -1)},
        {"A": (1, 0), "C": (-1, 1), "G": (0, -1), "T": (1, 1)},
    )
    painted = 0
    for convention in conventions:
        image = np.zeros(CANVAS * CANVAS, dtype=np.int64)
        places = []
        for axis in (0, 1):
            steps = np.zeros(256, dtype=np.int32)
            for base, step in convention.items():
                steps[ord(base)] = step[axis]
            walk = np.cumsum(steps[bases], dtype=np.int32)
            low, high = int(walk.min()), int(walk.max())
            places.append((walk - low).astype(np.float32) * ((CANVAS - 1) / max(1, high - low)))
        image += np.bincount(
            places[0].astype(np.int32) * CANVAS + places[1].astype(np.int32), minlength=CANVAS * CANVAS
        )
        painted += int(np.count_nonzero(image))
    return painted


#: Bytes of one part of an upload.
PART = 4 << 20
#: Bytes a second of the link to the store, which the parts share: 256 Mbit/s, a quarter of a gigabit link.
LINK_BYTES_PER_S = 32 << 20


class Link:
    """A link of a fixed rate: those who send over it wait until their bytes are through. Simulated by sleeping."""

    def __init__(self, bytes_per_s):
        self.rate = bytes_per_s
        self.lock = threading.Lock()
        self.free_at = time.monotonic()

    def pass_through(self, count):
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + count / self.rate
            free_at = self.free_at
        time.sleep(max(0.0, free_at - time.monotonic()))


def upload(data):
    """Sends a file to a store in parts, each with its digest and over a connection. Returns the store's digest.

    The store is a thread of this process behind a socket, and the link to it has a fixed rate. Hardly any processor
    time, mostly waiting.
    """
    phase(0)
    parts = [(number, data[at : at + PART]) for number, at in enumerate(range(0, len(data), PART))]
    link = Link(LINK_BYTES_PER_S)
    stored = [b""] * len(parts)

    def send(part):
        number, content = part
        ours, theirs = socket.socketpair()

        def receive():
            digest = hashlib.sha256()
            while received := theirs.recv(256 << 10):
                digest.update(received)
            stored[number] = digest.digest()

        store = threading.Thread(target=receive)
        store.start()
        with ours:
            for at in range(0, len(content), 256 << 10):
                piece = content[at : at + (256 << 10)]
                link.pass_through(len(piece))
                ours.sendall(piece)
        store.join()
        theirs.close()
        if stored[number] != hashlib.sha256(content).digest():
            raise RuntimeError("The store has other bytes than were sent.")

    on_threads(send, parts, width_of(len(parts)))
    return hashlib.sha256(b"".join(stored)).hexdigest()


# Unrelated to the stated number: it names the content.


def random_graph(content, largest):
    """Returns a connected random graph that `content` names: nodes, and the two ends and the weight of each edge.

    Numbers of nodes are log-uniform below `largest`, mean degrees uniform from 4 to 16: graphs of one set differ more
    in content than in what their callers state about them.
    """
    random = np.random.default_rng([content, 1])
    nodes = int(np.exp(random.uniform(np.log(largest / 60), np.log(largest))))
    edges = int(nodes * random.uniform(4, 16))
    begin = np.concatenate([np.arange(1, nodes, dtype=np.int32), random.integers(0, nodes, edges, dtype=np.int32)])
    # A tree of random parents connects the graph.
    parents = (random.random(nodes - 1) * np.arange(1, nodes)).astype(np.int32)
    end = np.concatenate([parents, random.integers(0, nodes, edges, dtype=np.int32)])
    weight = random.random(len(begin), dtype=np.float32)
    return nodes, begin, end, weight


def neighbours_of(nodes, begin, end):
    """Returns the graph in both directions by node: where each node's neighbours start, and the neighbours."""
    both = np.concatenate([begin, end])
    order = np.argsort(both, kind="stable")
    starts = np.zeros(nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(both, minlength=nodes), out=starts[1:])
    return starts, np.concatenate([end, begin])[order]


#: Edges for which a further thread is worth while.
EDGES_A_THREAD = 500_000


def pagerank(content):
    """Ranks the nodes of a random graph for several topics by power iteration. Returns the most important node.

    The content decides how many topics there are. A topic is where those who do not follow an edge jump to.
    """
    phase(1)
    random = np.random.default_rng([content, 2])
    damping = 0.9
    nodes, begin, end, _ = random_graph(content, 300_000)
    topics = int(random.integers(1, 13))
    starts, neighbours = neighbours_of(nodes, begin, end)
    degree = np.diff(starts).astype(np.float32)
    width = width_of(-(-len(neighbours) // EDGES_A_THREAD))
    limits = np.searchsorted(starts, np.linspace(0, len(neighbours), width * 4 + 1)).tolist()
    limits[0], limits[-1] = 0, nodes
    most, best = -1, 0.0
    phase(width)
    for topic in range(topics):
        jump = np.where(np.arange(nodes) % topics == topic, (1 - damping) * topics / nodes, 0).astype(np.float32)
        rank = np.full(nodes, 1 / nodes, dtype=np.float32)
        for _ in range(60):
            share = rank / degree
            found = np.empty_like(rank)

            def gather(piece, share=share, found=found, jump=jump):
                low, high = piece
                if low < high:
                    first, last = starts[low], starts[high]
                    sums = np.add.reduceat(np.take(share, neighbours[first:last]), starts[low:high] - first)
                    np.multiply(sums, damping, out=found[low:high])
                    found[low:high] += jump[low:high]

            on_threads(gather, list(itertools.pairwise(limits)), width)
            change = float(np.abs(found - rank).sum())
            rank = found
            if change < 1e-7:
                break
        if rank.max() > best:
            most, best = int(rank.argmax()), float(rank.max())
    phase(1)
    return most


def forest_of(nodes, begin, end, weight):
    """Returns the indices of the edges of a minimum spanning forest, by Boruvka's algorithm over whole arrays."""
    root = np.arange(nodes, dtype=np.int32)
    alive = np.arange(len(begin))
    kept = []
    # Distinct weights make the forest unique: the place of an edge decides between equal weights.
    place = np.empty(len(begin), dtype=np.int64)
    place[np.argsort(weight, kind="stable")] = np.arange(len(begin))
    back = np.argsort(place)
    while len(alive):
        a, b = root[begin[alive]], root[end[alive]]
        cross = a != b
        alive, a, b = alive[cross], a[cross], b[cross]
        if not len(alive):
            break
        best = np.full(nodes, len(begin), dtype=np.int64)
        np.minimum.at(best, a, place[alive])
        np.minimum.at(best, b, place[alive])
        chosen = np.flatnonzero(best < len(begin))
        edge = back[best[chosen]]
        kept.append(np.unique(edge))
        # Each tree points to its neighbour over the chosen edge; of two that chose the same, the smaller is the root.
        other = root[begin[edge]] + root[end[edge]] - chosen
        parent = np.arange(nodes, dtype=np.int32)
        parent[chosen] = other
        pair = parent[parent] == np.arange(nodes)
        parent = np.where(pair & (np.arange(nodes) < parent), np.arange(nodes, dtype=np.int32), parent)
        while True:
            further = parent[parent]
            if np.array_equal(further, parent):
                break
            parent = further
        root = parent[root]
    return np.concatenate(kept) if kept else np.empty(0, dtype=np.int64)


def spanning_tree(content):
    """Finds the minimum spanning tree of a random graph. Returns its weight.

    Each thread finds the forest of its share of the edges. One thread joins the forests.
    """
    phase(1)
    nodes, begin, end, weight = random_graph(content, 300_000)
    width = width_of(-(-len(begin) // EDGES_A_THREAD))
    phase(width)

    def local(number):
        mine = np.arange(number, len(begin), width)
        return mine[forest_of(nodes, begin[mine], end[mine], weight[mine])]

    forests = on_threads(local, range(width), width)
    phase(1)
    rest = np.concatenate(forests)
    tree = rest[forest_of(nodes, begin[rest], end[rest], weight[rest])] if width > 1 else rest
    if len(tree) != nodes - 1:
        raise RuntimeError("The graph is not connected.")
    return round(float(weight[tree].sum(dtype=np.float64)), 3)


def breadth_first(content):
    """Searches a random graph in breadth from several nodes. Returns the largest distance.

    The content decides from how many nodes: those of one small part of the graph.
    """
    phase(1)
    random = np.random.default_rng([content, 3])
    nodes, begin, end, _ = random_graph(content, 80_000)
    starts, neighbours = neighbours_of(nodes, begin, end)
    sources = random.integers(0, nodes, int(random.integers(1, 97))).tolist()

    def search(source):
        distance = np.full(nodes, -1, dtype=np.int16)
        distance[source] = 0
        edge, depth = np.array([source]), 0
        while len(edge):
            counts = starts[edge + 1] - starts[edge]
            ends = np.cumsum(counts)
            at = np.arange(ends[-1]) + np.repeat(starts[edge] - ends + counts, counts)
            reached = neighbours[at]
            reached = reached[distance[reached] < 0]
            depth += 1
            distance[reached] = depth
            edge = np.flatnonzero(distance == depth)
        return depth - 1

    width = width_of(-(-len(sources) // 12))
    phase(width)
    depths = on_threads(search, sources, width)
    phase(1)
    return max(depths)


def frames_of(content):
    """Returns the width, the height and the frames of a clip that `content` names: moving textures and noise."""
    random = np.random.default_rng([content, 4])
    side, count = int(random.choice([144, 240, 288, 360, 480, 576])), int(random.integers(16, 72))
    wide = side * 16 // 9 // 16 * 16
    speed, noise = random.uniform(0, 12), random.uniform(0, 24)
    y, x = np.mgrid[0:side, 0:wide].astype(np.float32)

    def frame(number):
        shift = number * speed
        red = 128 + 80 * np.sin((x + shift) / 17) * np.cos(y / 23)
        green = 128 + 80 * np.cos((x - shift) / 29 + y / 31)
        blue = 128 + 80 * np.sin((x * y / 900 + shift) / 40)
        picture = np.stack([red, green, blue], axis=-1)
        picture += np.random.default_rng([content, 5, number]).normal(0, noise, picture.shape)
        return picture.clip(0, 255).astype(np.uint8)

    return wide, side, count, frame


def encode_video(content):
    """Makes the frames of a clip and encodes them with ffmpeg (H.264). Returns the bytes of the video.

    Without ffmpeg, each frame becomes a JPEG picture by Pillow on threads instead: less processor time a frame, and as
    many threads. The result says which.
    """
    phase(1)
    wide, side, count, frame = frames_of(content)
    width = width_of(side // 72)
    if shutil.which("ffmpeg") is None:
        from PIL import Image

        def encode(number):
            written = io.BytesIO()
            Image.fromarray(frame(number)).save(written, "JPEG", quality=85)
            return written.tell()

        phase(width)
        return {"encoder": "pillow", "bytes": sum(on_threads(encode, range(count), width))}
    with tempfile.TemporaryDirectory() as folder:
        raw, video = os.path.join(folder, "raw"), os.path.join(folder, "video.mp4")
        with open(raw, "wb") as file:
            for number in range(count):
                file.write(frame(number).tobytes())
        phase(width)
        subprocess.run(
            f"ffmpeg -v error -nostdin -f rawvideo -pix_fmt rgb24 -s {wide}x{side} -r 24 -i raw".split()
            + f"-c:v libx264 -preset fast -threads {width} -y video.mp4".split(),
            cwd=folder,
            check=True,
        )
        phase(1)
        return {"encoder": "ffmpeg", "bytes": os.path.getsize(video)}


class Model:
    """A small convolutional network with weights from a seed: the package that a function brings along."""

    def __init__(self):
        random = np.random.default_rng(2026)
        self.layers = [
            random.normal(0, (9 * a) ** -0.5, (9 * a, b)).astype(np.float32)
            for a, b in ((3, 48), (48, 96), (96, 192), (192, 192))
        ]
        self.head = random.normal(0, 192**-0.5, (192, 100)).astype(np.float32)

    def classes(self, pictures):
        """Returns the scores of 100 classes for pictures of 64 x 64 pixels."""
        values = pictures
        for number, layer in enumerate(self.layers):
            padded = np.pad(values, ((0, 0), (1, 1), (1, 1), (0, 0)))
            views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
            count, high, wide = views.shape[:3]
            columns = views.transpose(0, 1, 2, 4, 5, 3).reshape(count * high * wide, -1)
            values = np.maximum(columns @ layer, 0).reshape(count, high, wide, -1)
            if number < 3:
                values = values.reshape(count, high // 2, 2, wide // 2, 2, -1).max(axis=(2, 4))
        return values.mean(axis=(1, 2)) @ self.head


_model = None


def recognise(content):
    """Classifies the regions of a picture with a packaged network. Returns the most frequent class.

    The content decides how many regions there are, and how often an uncertain one is looked at again.
    """
    global _model  # noqa: PLW0603
    phase(1)
    if _model is None:
        _model = Model()
    random = np.random.default_rng([content, 6])
    regions = int(np.exp(random.uniform(np.log(8), np.log(700))))
    looks = int(random.integers(1, 4))
    batches = [(number, min(16, regions - number)) for number in range(0, regions, 16)]

    def classify(batch):
        number, count = batch
        pictures = np.random.default_rng([content, 7, number]).random((count, 64, 64, 3), dtype=np.float32)
        scores = sum(_model.classes(np.roll(pictures, look, axis=2)) for look in range(looks))
        return scores.argmax(axis=1)

    width = width_of(-(-len(batches) // 4))
    phase(width)
    found = on_threads(classify, batches, width)
    phase(1)
    return int(np.bincount(np.concatenate(found)).argmax())


def album_of(pictures, seed):
    """Returns an album of JPEG pictures of 1,280 x 800 pixels: eight different ones, repeated."""
    from PIL import Image

    different = []
    y, x = np.mgrid[0:800, 0:1280].astype(np.float32)
    for number in range(min(8, pictures)):
        random = np.random.default_rng([seed, number])
        a, b, c = random.uniform(10, 90, 3)
        picture = np.stack([np.sin(x / a) + np.cos(y / b), np.cos(x / c + y / a), np.sin(x * y / 2e4 / b)], axis=-1)
        picture = 128 + 60 * picture + random.normal(0, 8, picture.shape)
        written = io.BytesIO()
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(written, "JPEG", quality=85)
        different.append(written.getvalue())
    return pack(different[number % len(different)] for number in range(pictures))


def file_of(count, seed):
    """Returns bytes that compress to about half: words of a random vocabulary between random bytes.

    They repeat after some four MiB, which no block of `compress` reaches.
    """
    random = np.random.default_rng([seed, count])
    words = [random.bytes(int(length)) for length in random.integers(3, 12, 2_000)]
    number = min(count, 4 << 20) // 8 + 1
    noise = random.bytes(2 * number)
    mixed = b"".join(
        words[index] + noise[2 * at : 2 * at + 2] for at, index in enumerate(random.zipf(1.3, number) % 2_000)
    )
    return (mixed * (count // max(1, len(mixed)) + 1))[:count]


def sequence_of(count, seed):
    return np.frombuffer(b"ACGT", dtype=np.uint8)[np.random.default_rng(seed).integers(0, 4, count)].tobytes()


#: Each function: whether its demand is related to the size, and the least and largest size (or content) of its calls.
#: A size counts pages, pictures or bytes.
FUNCTIONS = {
    "dynamic_html": (dynamic_html, True, 300, 24_000),
    "thumbnail": (thumbnail, True, 2, 72),
    "compress": (compress, True, 256 << 10, 14 << 20),
    "visualise_dna": (visualise_dna, True, 1_000_000, 24_000_000),
    "upload": (upload, True, 2 << 20, 160 << 20),
    "encode_video": (encode_video, False, 0, 2**31),
    "recognise": (recognise, False, 0, 2**31),
    "pagerank": (pagerank, False, 0, 2**31),
    "spanning_tree": (spanning_tree, False, 0, 2**31),
    "breadth_first": (breadth_first, False, 0, 2**31),
}


def arguments(name, size, seed=0):
    """Returns the arguments of one call: of `size` where it matters, otherwise with `size` as the content's name."""
    if name == "thumbnail":
        return (album_of(size, seed),)
    if name in ("compress", "upload"):
        return (file_of(size, seed),)
    if name == "visualise_dna":
        return (sequence_of(size, seed),)
    return (size,)
