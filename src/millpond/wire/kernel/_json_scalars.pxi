# Part of _values.pyx: JSON texts and numbers as column values.

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

cdef enum:
    # Python may refuse to read a longer number.
    NUMBER_CHARACTERS_MAX = 300
    EXPONENT_DIGITS_MAX = 4
    # This many digits always fit into 64 unsigned bits.
    DIGITS_MAX = 19
    DECIMAL_CHARACTERS_MAX = 100
    FRACTION_DIGITS_PLAIN = 6
    NO_PAIR = 1000
    FIVES_FROM = -64
    FIVES_TO = 64
    FIVES = 129

cdef int64_t SECONDS_BELOW = 10**11
cdef int64_t MILLISECONDS_BELOW = 10**14
cdef int64_t MICROSECONDS_BELOW = 10**17
cdef int64_t DAY_MICROSECONDS = 86_400_000_000
cdef uint64_t DOUBLE_EXACT_MAX = 1 << 53
cdef int64_t[13] DAYS_BEFORE = [0, 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334]
cdef unsigned int[13] MONTH_DAYS = [0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
cdef double[23] TENS = [float(f"1e{each}") for each in range(23)]
cdef uint64_t[FIVES] FIVES_HIGH
cdef uint64_t[FIVES] FIVES_LOW


def _five(exponent):
    """The first 128 bits of five to that power: truncated, or rounded up if the power is negative."""
    five = 5 ** abs(exponent)
    if exponent >= 0:
        return five << 128 >> five.bit_length()
    # Of a power of five, no bit length is that of a power of two.
    found = (1 << (five.bit_length() + 255)) // five
    return (found >> (found.bit_length() - 128)) + 1


for _exponent in range(FIVES_FROM, FIVES_TO + 1):
    FIVES_HIGH[_exponent - FIVES_FROM] = _five(_exponent) >> 64
    FIVES_LOW[_exponent - FIVES_FROM] = _five(_exponent) & 0xFFFFFFFFFFFFFFFF


cdef struct Number:
    # `digits` are all but a zero before the point. Beyond DIGITS_MAX of them, the mantissa means nothing.
    Text text
    bint negative
    uint64_t mantissa
    Py_ssize_t digits
    Py_ssize_t fraction_digits
    int exponent
    bint has_exponent
    bint starts_with_zero


cdef inline bint _is_digit(const uint8_t* at, const uint8_t* end) noexcept:
    return at < end and <unsigned int>(at[0] - c"0") <= 9


cdef inline int _json_number(State* state, Number* number) noexcept:
    cdef const uint8_t* at = state.at
    cdef const uint8_t* end = state.end
    cdef const uint8_t* start
    cdef uint64_t mantissa = 0
    cdef bint is_small
    number.negative = at < end and at[0] == c"-"
    if number.negative:
        at += 1
    if not _is_digit(at, end):
        return 0
    start = at
    number.starts_with_zero = at[0] == c"0"
    if number.starts_with_zero:
        at += 1
        start = at
    else:
        while _is_digit(at, end):
            mantissa = mantissa * 10 + (at[0] - c"0")
            at += 1
    number.digits = at - start
    number.fraction_digits = 0
    if at < end and at[0] == c".":
        at += 1
        start = at
        while _is_digit(at, end):
            mantissa = mantissa * 10 + (at[0] - c"0")
            at += 1
        number.fraction_digits = at - start
        number.digits += number.fraction_digits
        if not number.fraction_digits:
            return 0
    number.has_exponent = at < end and (at[0] == c"e" or at[0] == c"E")
    number.exponent = 0
    if number.has_exponent:
        at += 1
        is_small = at < end and at[0] == c"-"
        if at < end and (at[0] == c"-" or at[0] == c"+"):
            at += 1
        start = at
        while _is_digit(at, end) and at - start <= EXPONENT_DIGITS_MAX:
            number.exponent = number.exponent * 10 + (at[0] - c"0")
            at += 1
        if not 1 <= at - start <= EXPONENT_DIGITS_MAX:
            return 0
        if is_small:
            number.exponent = -number.exponent
    number.mantissa = mantissa
    number.text = Text(state.at, at - state.at)
    state.at = at
    return number.text.size <= NUMBER_CHARACTERS_MAX


cdef int _json_from_number(State* state, Node* node) except -1:
    cdef Number number
    cdef int kind = node.kind
    if kind == DOUBLE or kind == FLOAT:
        if state.end - state.at > 1 and state.at[1] == c"I":
            return _json_not_finite(state, node)
        return _json_number(state, &number) and _append_double(node, &number)
    if INT8 <= kind <= INT64:
        return _json_integer(state, node)
    if not _json_number(state, &number):
        return 0
    if kind == DECIMAL:
        return _append_decimal(node, &number.text)
    if kind == STRING:
        return _is_plain(&number) and _append_text(node, number.text.start, number.text.size)
    if number.has_exponent or number.digits > DIGITS_MAX:
        return 0
    return kind == TIMESTAMP and _append_epoch(node, &number)


cdef int _json_integer(State* state, Node* node) except -1:
    """A number without a point or an exponent: what comes after its digits is for the caller, and a point ends
    nothing that could go on."""
    cdef const uint8_t* at = state.at
    cdef const uint8_t* end = state.end
    cdef bint negative = at < end and at[0] == c"-"
    cdef const uint8_t* start
    cdef uint64_t number = 0
    if negative:
        at += 1
    start = at
    while _is_digit(at, end):
        number = number * 10 + (at[0] - c"0")
        at += 1
    if not 1 <= at - start <= DIGITS_MAX or (start[0] == c"0" and at - start > 1):
        return 0
    state.at = at
    if number > <uint64_t>INT64_MAX + negative:
        return 0
    return _append_integer(node, <int64_t>(0 - number if negative else number))


cdef bint _is_plain(Number* number) noexcept:
    """Whether the number as a text is what it was written as: no exponent, nor a need for one, nor a minus that is
    lost."""
    if number.has_exponent:
        return False
    if number.fraction_digits:
        return not number.starts_with_zero or number.fraction_digits <= FRACTION_DIGITS_PLAIN
    return not (number.negative and number.starts_with_zero)


cdef int _append_epoch(Node* node, Number* number) except -1:
    """As json_rows.epoch_microseconds and its like for fractions."""
    cdef uint64_t whole = number.mantissa
    cdef uint64_t fraction = 0
    cdef uint64_t unit = 1
    cdef uint64_t factor
    cdef int64_t result
    cdef Py_ssize_t index
    # Numbers with this many digits are not rounded there.
    if number.fraction_digits:
        if number.digits >= DIGITS_MAX:
            return 0
        for index in range(number.fraction_digits):
            unit *= 10
        fraction = whole % unit
        whole //= unit
    if whole < <uint64_t>SECONDS_BELOW:
        factor = 1_000_000
    elif whole < <uint64_t>MILLISECONDS_BELOW:
        factor = 1_000
    elif whole < <uint64_t>MICROSECONDS_BELOW:
        factor = 1
    elif number.fraction_digits or whole > <uint64_t>INT64_MAX:
        return 0
    else:
        factor = 1
        whole //= 1_000
    if fraction:
        # At most six digits count; more would not fit into 64 bits.
        while unit > factor:
            unit //= 10
            fraction //= 10
        result = <int64_t>(whole * factor + fraction * (factor // unit))
    else:
        result = <int64_t>(whole * factor)
    return _append_integer(node, -result if number.negative else result)


# Floating point.


cdef int _append_double(Node* node, Number* number) except -1:
    cdef double value
    cdef float narrow
    if not _double_of(number, &value) and not _double_slowly(&number.text, &value):
        return 0
    # Zero written as an integer has no sign.
    if number.negative and (value != 0 or number.fraction_digits or number.has_exponent):
        value = -value
    if value - value != 0:
        return 0
    if node.kind == DOUBLE:
        (<double*>_room(node))[0] = value
        return 1
    narrow = <float>value
    if narrow - narrow != 0:
        return 0
    (<float*>_room(node))[0] = narrow
    return 1


cdef inline bint _double_of(Number* number, double* value) noexcept:
    """The double nearest to the absolute number, if it can be found quickly."""
    cdef Py_ssize_t exponent = number.exponent - number.fraction_digits
    if number.digits > DIGITS_MAX:
        return False
    if number.mantissa <= DOUBLE_EXACT_MAX and -22 <= exponent <= 22:
        # Both are exact, so the result is rounded only once.
        value[0] = <double>number.mantissa
        if exponent < 0:
            value[0] /= TENS[-exponent]
        else:
            value[0] *= TENS[exponent]
        return True
    if number.mantissa == 0:
        value[0] = 0.0
        return True
    return FIVES_FROM <= exponent <= FIVES_TO and _double_by_product(number.mantissa, <int>exponent, value)


cdef bint _double_by_product(uint64_t mantissa, int exponent, double* value) noexcept:
    """By the first 128 bits of a product with a power of five, as Daniel Lemire describes it in "Number Parsing at a
    Gigabyte per Second" (2021). False where these do not decide."""
    cdef uint64_t high, low, more, unused
    cdef int shift = 0
    cdef int upper, power
    while not mantissa >> 63:
        mantissa <<= 1
        shift += 1
    _multiply(mantissa, FIVES_HIGH[exponent - FIVES_FROM], &high, &low)
    if high & 0x1FF == 0x1FF:
        _multiply(mantissa, FIVES_LOW[exponent - FIVES_FROM], &more, &unused)
        low += more
        if low < more:
            high += 1
    if low == 0xFFFFFFFFFFFFFFFFULL and not -27 <= exponent <= 55:
        return False
    upper = <int>(high >> 63)
    mantissa = high >> (upper + 9)
    power = ((217706 * exponent) >> 16) + 63 + upper - shift + 1023
    if not 0 < power < 0x7FE:
        return False
    # Halfway between two, if nothing was truncated: round to even.
    if low <= 1 and -4 <= exponent <= 23 and mantissa & 3 == 1 and mantissa << (upper + 9) == high:
        mantissa &= ~<uint64_t>1
    mantissa = (mantissa + (mantissa & 1)) >> 1
    if mantissa >> 53:
        mantissa = <uint64_t>1 << 52
        power += 1
    mantissa = (mantissa & ~(<uint64_t>1 << 52)) | <uint64_t>power << 52
    memcpy(value, &mantissa, sizeof(double))
    return True


cdef int _double_slowly(Text* text, double* value) except -1:
    """As in Python, without the sign."""
    cdef char[NUMBER_CHARACTERS_MAX + 1] copy
    cdef Py_ssize_t sign = text.start[0] == c"-"
    memcpy(copy, text.start + sign, text.size - sign)
    copy[text.size - sign] = 0
    value[0] = PyOS_string_to_double(copy, NULL, NULL)
    return 1


cdef int _json_not_finite(State* state, Node* node) except -1:
    cdef double value
    if _pass_word(state, "NaN", 3):
        value = float("nan")
    elif _pass_word(state, "Infinity", 8):
        value = float("inf")
    elif _pass_word(state, "-Infinity", 9):
        value = float("-inf")
    else:
        return 0
    if node.kind == DOUBLE:
        (<double*>_room(node))[0] = value
    else:
        (<float*>_room(node))[0] = <float>value
    return 1


# Texts.


cdef int _json_from_text(State* state, Node* node) except -1:
    """Starts after the quote."""
    cdef int kind = node.kind
    cdef Text text
    cdef bint escaped
    cdef State inside
    if kind == STRING:
        return _json_string(state, node)
    if not _json_text(state, &text, &escaped) or escaped:
        return 0
    if kind == TIMESTAMP or kind == DATE:
        return _append_time(node, &text)
    if kind == DECIMAL:
        return text.size <= DECIMAL_CHARACTERS_MAX and _append_decimal(node, &text)
    if kind == BINARY:
        return _append_base64(node, &text)
    if kind == DOUBLE or kind == FLOAT:
        inside.at = text.start
        inside.end = text.start + text.size
        return text.size in (3, 8, 9) and _json_not_finite(&inside, node) and inside.at == inside.end
    return 0


cdef int _append_decimal(Node* node, Text* text) except -1:
    """Without an exponent, and as long as nothing but zeros is beyond the scale."""
    cdef const uint8_t* at = text.start
    cdef const uint8_t* end = at + text.size
    cdef const uint8_t* start
    cdef bint negative = at < end and at[0] == c"-"
    cdef bint has_digits
    cdef uint64_t high = 0
    cdef uint64_t low = 0
    cdef Py_ssize_t digits
    if at < end and (at[0] == c"-" or at[0] == c"+"):
        at += 1
    has_digits = _is_digit(at, end)
    while at < end and at[0] == c"0":
        at += 1
    start = at
    while _is_digit(at, end):
        if at - start >= node.precision - node.scale:
            return 0
        _add_digit(&high, &low, at[0] - c"0")
        at += 1
    digits = 0
    if at < end and at[0] == c".":
        at += 1
        has_digits = has_digits or _is_digit(at, end)
        while _is_digit(at, end):
            if digits < node.scale:
                _add_digit(&high, &low, at[0] - c"0")
                digits += 1
            elif at[0] != c"0":
                return 0
            at += 1
    if at != end or not has_digits:
        return 0
    for _ in range(node.scale - digits):
        _add_digit(&high, &low, 0)
    return _append_wide(node, high, low, negative)


cdef inline void _add_digit(uint64_t* high, uint64_t* low, uint64_t digit) noexcept:
    cdef uint64_t more
    if high[0] == 0 and low[0] < 1_000_000_000_000_000_000:
        low[0] = low[0] * 10 + digit
        return
    _multiply(low[0], 10, &more, low)
    low[0] += digit
    high[0] = high[0] * 10 + more + (low[0] < digit)


cdef int _append_base64(Node* node, Text* text) except -1:
    """In canonical form: without stray bits."""
    cdef uint32_t bits = 0
    cdef Py_ssize_t index, size
    cdef int place, digit, padding
    cdef uint8_t* out
    if text.size % 4:
        return 0
    size = text.size // 4 * 3
    if size > INT32_MAX - node.data.used:
        return 0
    _reserve(&node.data, node.data.used + size)
    out = node.data.start + node.data.used
    padding = 0
    if size and text.start[text.size - 1] == c"=":
        padding = 2 if text.start[text.size - 2] == c"=" else 1
    for index in range(0, text.size, 4):
        bits = 0
        for place in range(4):
            digit = _base64_digit(text.start[index + place])
            if digit < 0:
                if index + 4 < text.size or place < 4 - padding:
                    return 0
                digit = 0
            bits = bits << 6 | <uint32_t>digit
        out[0] = bits >> 16
        out[1] = bits >> 8 & 0xFF
        out[2] = bits & 0xFF
        out += 3
    if padding and bits & (0xFF if padding == 1 else 0xFFFF):
        return 0
    node.data.used += size - padding
    _end_text(node)
    return 1


cdef inline int _base64_digit(uint8_t character) noexcept:
    if c"A" <= character <= c"Z":
        return character - c"A"
    if c"a" <= character <= c"z":
        return character - c"a" + 26
    if c"0" <= character <= c"9":
        return character - c"0" + 52
    if character == c"+":
        return 62
    return 63 if character == c"/" else -1


# Times.


cdef int _append_time(Node* node, Text* text) except -1:
    """Like json_rows.iso_microseconds, or a date alone. Hour 24 and minute 60 are invalid."""
    cdef const uint8_t* at = text.start
    cdef const uint8_t* end = at + text.size
    cdef int64_t days
    cdef int64_t clock = 0
    if not _days(at, end, &days):
        return 0
    at += 10
    if node.kind == DATE:
        return at == end and _append_integer(node, days)
    if at < end and not _clock(at, end, &clock):
        return 0
    return _append_integer(node, days * DAY_MICROSECONDS + clock)


cdef inline unsigned int _pair(const uint8_t* at, const uint8_t* end) noexcept:
    """Two digits; a large number if they are not digits."""
    cdef unsigned int first, second
    if end - at < 2:
        return NO_PAIR
    first = at[0] - <unsigned int>c"0"
    second = at[1] - <unsigned int>c"0"
    return first * 10 + second if first <= 9 and second <= 9 else NO_PAIR


cdef bint _days(const uint8_t* at, const uint8_t* end, int64_t* days) noexcept:
    """Days since 1970 of a date such as 2030-12-31."""
    cdef unsigned int century, year, month, day
    cdef int64_t before
    cdef bint is_leap
    if end - at < 10 or at[4] != c"-" or at[7] != c"-":
        return False
    century = _pair(at, end)
    year = _pair(at + 2, end)
    month = _pair(at + 5, end)
    day = _pair(at + 8, end)
    if century > 99 or year > 99 or not 1 <= month <= 12 or day < 1:
        return False
    year += century * 100
    if year < 1:
        return False
    is_leap = not year & 3 and (year % 100 != 0 or year % 400 == 0)
    if day > MONTH_DAYS[month] + <unsigned int>(is_leap and month == 2):
        return False
    before = <int64_t>year - 1
    days[0] = 365 * before + before // 4 - before // 100 + before // 400 - 719162
    days[0] += DAYS_BEFORE[month] + (is_leap and month > 2) + <int64_t>day - 1
    return True


cdef bint _clock(const uint8_t* at, const uint8_t* end, int64_t* clock) noexcept:
    """The microseconds of the time after a date, minus its zone offset."""
    cdef unsigned int hour
    cdef unsigned int minute = 0
    cdef unsigned int second = 0
    cdef int digits = 0
    cdef int64_t fraction = 0
    cdef int64_t zone = 0
    if at[0] != c"T" and at[0] != c" ":
        return False
    hour = _pair(at + 1, end)
    at += 3
    if hour > 23:
        return False
    if at < end and at[0] == c":":
        minute = _pair(at + 1, end)
        if minute > 59:
            return False
        at += 3
        if at < end and at[0] == c":":
            second = _pair(at + 1, end)
            if second > 59:
                return False
            at += 3
            if at < end and at[0] == c".":
                at += 1
                while _is_digit(at, end):
                    if digits < 6:
                        fraction = fraction * 10 + (at[0] - c"0")
                    digits += 1
                    at += 1
                if not 1 <= digits <= 9:
                    return False
                for _ in range(digits, 6):
                    fraction *= 10
    if at < end and not _zone(at, end, &zone):
        return False
    clock[0] = ((<int64_t>(hour * 60 + minute) - zone) * 60 + second) * 1_000_000 + fraction
    return True


cdef bint _zone(const uint8_t* at, const uint8_t* end, int64_t* minutes) noexcept:
    cdef bint negative = at[0] == c"-"
    cdef unsigned int hour
    cdef unsigned int minute = 0
    if at[0] == c"Z":
        return end - at == 1
    if not negative and at[0] != c"+":
        return False
    hour = _pair(at + 1, end)
    at += 3
    if hour > 23:
        return False
    if at < end:
        if at[0] == c":":
            at += 1
        minute = _pair(at, end)
        at += 2
    if minute > 59 or at != end:
        return False
    minutes[0] = hour * 60 + minute
    if negative:
        minutes[0] = -minutes[0]
    return True
