"""Values and their texts. The server (tests/pure) and the browser (tests/browser) must format them alike."""

NBSP = "\u00a0"
NUMBERS = [
    (None, "–"),
    (0, "0"),
    (1, "1"),
    (0.5, "0.5"),
    (1.25, "1.25"),
    (0.1 + 0.2, "0.3"),
    (16, "16"),
    (1234, "1,234"),
    (1234567.891, "1,234,567.891"),
]
PERCENTS = [
    (None, "–"),
    (0, f"0{NBSP}%"),
    (0.004, f"<1{NBSP}%"),
    (0.005, f"1{NBSP}%"),
    (0.125, f"13{NBSP}%"),
    (0.97, f"97{NBSP}%"),
    (1, f"100{NBSP}%"),
]
MEBIBYTES = [
    (None, "–"),
    (0, f"0{NBSP}MiB"),
    (512, f"512{NBSP}MiB"),
    (1024, f"1{NBSP}GiB"),
    (1536, f"1.5{NBSP}GiB"),
    (32768, f"32{NBSP}GiB"),
]
DURATIONS = [
    (None, "–"),
    (-5, f"0{NBSP}s"),
    (0, f"0{NBSP}s"),
    (59.9, f"59{NBSP}s"),
    (60, f"1{NBSP}m 0{NBSP}s"),
    (130, f"2{NBSP}m 10{NBSP}s"),
    (599, f"9{NBSP}m 59{NBSP}s"),
    (600, f"10{NBSP}m"),
    (3599, f"59{NBSP}m"),
    (3600, f"1{NBSP}h 0{NBSP}m"),
    (12000, f"3{NBSP}h 20{NBSP}m"),
    (86400, f"1{NBSP}d 0{NBSP}h"),
    (187200, f"2{NBSP}d 4{NBSP}h"),
]
AGES = [
    (3, "just now"),
    (30, f"30{NBSP}s ago"),
    (60, f"1{NBSP}m ago"),
    (65, f"1{NBSP}m 5{NBSP}s ago"),
    (600, f"10{NBSP}m ago"),
    (18000, f"5{NBSP}h ago"),
    (18600, f"5{NBSP}h 10{NBSP}m ago"),
    (86400, f"1{NBSP}d ago"),
]
FIGURES = [
    (None, "–"),
    (0, "0"),
    (0.08634, "0.0863"),
    (0.5, "0.5"),
    (2.3026, "2.3"),
    (98.31, "98.3"),
    (100, "100"),
    (0.0000123, "0.0000123"),
    (1234.5, "1,230"),
]
PROGRESS = [
    (None, None),
    ({}, None),
    ({"step": 5}, None),
    ({"step": 5, "total_steps": 0}, None),
    ({"step": 5, "total_steps": 10}, 0.5),
    ({"step": 0, "total_steps": 10}, 0.0),
    ({"step": 15, "total_steps": 10}, 1.0),
]
# lines of a log, and what `yard logs` and the log viewer show of them; "" for the line as it is
PROGRESS_LINES = [
    (
        '{"trainyard": 1, "epoch": 7, "epochs": 80, "step": 165, "total_steps": 1920, "accuracy": 0.98132}',
        "epoch 7/80  step 165/1920  accuracy 0.981",
    ),
    ('{"trainyard": 1, "step": 12345678, "loss": 12.3456}', "step 12345678  loss 12.35"),
    (
        '{"trainyard": 1, "step": 1, "loss": 0.40218, "accuracy": 0.98132, "seconds_per_step": 0.071234}',
        "step 1  loss 0.4022  accuracy 0.981  0.071 s/step",
    ),
    ('{"trainyard": 1, "epoch": 2}', "epoch 2"),
    ('{"trainyard": 1, "checkpoint_at": 1767225600, "checkpoint_step": 1200}', "checkpoint at step 1200"),
    ('{"trainyard": 1, "step": 5, "checkpoint_step": 4}', "step 5"),
    ('{"trainyard": 1.0, "step": 3, "total_steps": 0}', "step 3"),
    ('{"trainyard": 1, "step": -0, "loss": -0.0}', "step 0  loss 0"),
    ('{"trainyard": 1, "loss": 0.0001}', "loss 0.0001"),
    ('{"trainyard": 1, "loss": 0.00001234567}', "loss 1.235e-05"),
    ('{"trainyard": 1, "loss": 123456.7}', "loss 1.235e+05"),
    ('{"trainyard": 1, "loss": 9999.96}', "loss 1e+04"),
    ('{"trainyard": 1, "loss": 1e300, "accuracy": 0.5}', "loss 1e+300  accuracy 0.5"),
    # ties go to the even digit
    (
        '{"trainyard": 1, "loss": 1.0625, "accuracy": 0.0625, "seconds_per_step": 12.5}',
        "loss 1.062  accuracy 0.0625  12 s/step",
    ),
    ('{"trainyard": 1, "loss": 1.1875, "seconds_per_step": 13.5}', "loss 1.188  14 s/step"),
    ('{"trainyard": 1, "loss": -0.5}', "loss -0.5"),
    ('{"trainyard": 1, "step": 1.5, "total_steps": 2}', "step 1.5/2"),
    ('{"trainyard": 1, "step": 1, "loss": NaN, "accuracy": -Infinity}', "step 1  loss nan  accuracy -inf"),
    ('{"trainyard": 1, "note": "NaN", "step": 1, "loss": Infinity}', "step 1  loss inf"),
    ('{"trainyard": 1, "step": 1' + "0" * 400 + "}", "step inf"),
    ('{"trainyard": 1, "step": 1, "loss": "0.5", "note": "a \\" NaN"}', "step 1"),
    ('{"trainyard": 1, "loss": "\\u001b[2J", "step": true}', ""),
    ('{"trainyard": 1, "loss": "nan", "step": null, "epoch": [1]}', ""),
    ('{"trainyard": true, "step": 1}', ""),
    ('{"trainyard": 2, "step": 1}', ""),
    ('{"step": 1}', ""),
    ('{"trainyard": 1, "step": ' + "[" * 100_000, ""),
    ('{"trainyard": 1, "step": 1', ""),
    ('{"trainyard": 1, "step": 1} and more', ""),
    (' {"trainyard": 1, "step": 1}', ""),
    ("trainyard", ""),
]
